"""`esper train`: train a controller, and record it."""

from dataclasses import replace
from datetime import datetime

from esper.cli import train_options


def run(arguments: list[str]) -> int:
    options = train_options.parse(arguments)
    from esper.cli.training import Report, train_recorded

    config = options.settings
    if config.run_name is None:
        config = replace(config, run_name=new_name(config.suite, datetime.now()))
    return train_recorded(config, Report(quiet=options.quiet, json=options.json))


def new_name(suite: str, now: datetime) -> str:
    """The suite or task, and when."""
    return f"{suite.partition(':')[0]}-{now:%Y%m%d-%H%M%S}"
