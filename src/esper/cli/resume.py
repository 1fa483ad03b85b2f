"""`esper resume`: go on with a run that stopped."""

from dataclasses import replace

from esper.cli.common import VerbParser, find_run


def run(arguments: list[str]) -> int:
    """Resume a run; returns the exit code."""
    summary = "Go on with a run from its newest checkpoint, as if it had not stopped."
    chosen = VerbParser("resume", summary, "esper resume my-run", "run", "quiet", "json").parse(arguments)
    path = find_run(chosen.run, chosen.directory).resolve()
    from esper.cli.train import train_recorded
    from esper.simic.config.training_config import TrainingConfig

    config = TrainingConfig.load(path / "config.json")
    config = replace(config, run_directory=path.parent, run_name=path.name)
    return train_recorded(config, quiet=chosen.quiet, json=chosen.json, resume=True)
