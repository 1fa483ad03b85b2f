"""`esper resume`: go on with a run that stopped."""

from dataclasses import replace

from esper.cli.common import BadInput, VerbParser, find_run


def run(arguments: list[str]) -> int:
    parser = VerbParser(
        "resume",
        "Go on with a run from its newest checkpoint, as if it had not stopped.",
        "esper resume my-run",
    )
    parser.add_run()
    parser.add_quiet()
    parser.add_json()
    chosen = parser.parse_args(arguments)
    path = find_run(chosen.run, chosen.directory).resolve()
    from esper.cli.training import Report, train_recorded
    from esper.simic.config.errors import ConfigError
    from esper.simic.config.training_config import TrainingConfig

    try:
        config = replace(
            TrainingConfig.load(path / "config.json"), run_directory=path.parent, run_name=path.name
        )
    except ConfigError as error:
        raise BadInput(str(error)) from None
    return train_recorded(config, Report(quiet=chosen.quiet, json=chosen.json), resume=True)
