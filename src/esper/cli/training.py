"""What `esper train` and `esper resume` share: a recorded run, what is told of it, and the exit code."""

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from esper.cli.common import INTERRUPTED, BadInput, as_json, plain, table
from esper.nissa import RunError
from esper.runs.train import require_trainable, train
from esper.simic.config.errors import ConfigError
from esper.simic.config.training_config import TrainingConfig
from esper.simic.reports import News, Progress

GAVE_UP = 1


@dataclass(frozen=True, slots=True)
class Report:
    """What the person at the terminal is told."""

    quiet: bool
    json: bool

    def say(self, text: str) -> None:
        if not self.quiet and not self.json:
            print(text, flush=True)

    @contextlib.contextmanager
    def following(self, rounds: int) -> Iterator[Progress]:
        """A live picture at a terminal, lines elsewhere, nothing where nothing was asked for."""
        if self.quiet or self.json or not sys.stdout.isatty():
            yield self.line
            return
        from esper.karn.console import LiveConsole

        with LiveConsole(rounds) as console:
            yield console.show

    def line(self, news: News) -> None:
        from esper.karn.console import line_of

        told = line_of(news)
        if told is not None:
            self.say(told)

    def result(self, result: object) -> None:
        if self.json:
            print(as_json(result))
        elif isinstance(numbers := plain(result), dict):
            self.say(table(("result", ""), list(numbers.items())))
        else:
            self.say(str(numbers))


def train_recorded(config: TrainingConfig, report: Report, *, resume: bool = False) -> int:
    """Train a run that has its name; returns the exit code."""
    from esper.simic.agent import CheckpointError, NonFiniteUpdateError
    from esper.tolaria.engine.population import OutOfDeviceMemory

    _use_one_thread()
    assert config.run_name is not None
    run = config.run_directory / config.run_name
    try:
        require_trainable(config)
        report.say(f"{'resuming' if resume else 'run'} {run}")
        with report.following(config.rounds) as progress:
            result = train(config, resume=resume, progress=progress)
    except KeyboardInterrupt:
        print(f"esper: interrupted; `esper resume {run}` goes on", file=sys.stderr)
        return INTERRUPTED
    except NonFiniteUpdateError as error:
        print(f"esper: {error}", file=sys.stderr)
        return GAVE_UP
    except (ConfigError, RunError, CheckpointError, OutOfDeviceMemory) as error:
        raise BadInput(str(error)) from None
    report.result(result)
    if result.interrupted is not None:
        print(f"esper: stopped by {result.interrupted}; `esper resume {run}` goes on", file=sys.stderr)
        return INTERRUPTED
    return 0


def _use_one_thread() -> None:
    """Hosts are small: threads cost more than they bring, and how they split sums is in the last bits."""
    import torch

    torch.set_num_threads(1)
