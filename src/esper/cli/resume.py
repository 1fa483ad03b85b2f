"""`esper resume`: go on with a run that stopped, or beyond the rounds it was first asked for."""

from dataclasses import replace

from esper.cli.common import VerbParser, find_run

_SUMMARY = """Go on with a run from its newest sound checkpoint, as if it had not stopped.

With --rounds it goes on beyond the rounds first asked for. Annealing of lr and entropy_coef that follows the rounds
keeps the length it had: further rounds are trained at its end."""


class _ResumeParser(VerbParser):
    def hint(self, flag: str, otherwise: str) -> str:
        """A setting is no option here, however much it is spelled like one."""
        from esper.simic.config.training_config import TrainingConfig

        if flag.removeprefix("--").replace("-", "_") in TrainingConfig.__dataclass_fields__:
            return "a run keeps its settings, only --rounds may change"
        return super().hint(flag, otherwise)


def run(arguments: list[str]) -> int:
    """Resume a run; returns the exit code."""
    parser = _ResumeParser("resume", _SUMMARY, "esper resume my-run --rounds 200", "run", "quiet", "json")
    parser.add_count("--rounds", "rounds in all; by default as many as the run was asked for")
    chosen = parser.parse(arguments)
    path = find_run(chosen.run, chosen.directory).resolve()
    from esper.cli.train import train_recorded
    from esper.simic.config.training_config import TrainingConfig

    config = TrainingConfig.load(path / "config.json")
    config = replace(config, run_directory=path.parent, run_name=path.name)
    if chosen.rounds is not None:
        config = replace(config, rounds=chosen.rounds)
    return train_recorded(config, quiet=chosen.quiet, json=chosen.json, resume=True)
