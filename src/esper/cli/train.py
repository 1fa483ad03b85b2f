"""`esper train`: train a controller, and record it."""

from esper.cli import train_options


def run(arguments: list[str]) -> int:
    options = train_options.parse(arguments)
    from esper.cli.training import Report, train_recorded
    from esper.recorded import with_name

    return train_recorded(with_name(options.settings), Report(quiet=options.quiet, json=options.json))
