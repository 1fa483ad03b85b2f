"""A training in a process of its own, for a test to stop."""

import os
import signal
import warnings
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from esper.nissa import Checkpoints
from esper.simic.config.training_config import TrainingConfig
from esper.simic.trainer import train_ppo_vectorized
from esper.tolaria.worlds.worker import worker_context


class StoppedTraining:
    """Begins at once; `next_event` waits for what happens there."""

    def __init__(self, config: TrainingConfig, directory: Path) -> None:
        context = worker_context()
        self._events, theirs = context.Pipe(duplex=False)
        self._process = context.Process(target=_train, args=(config, directory, theirs), daemon=True)
        self._process.start()
        theirs.close()

    def next_event(self) -> str:
        """The name of its kind."""
        event: str = self._events.recv()
        return event

    def stop(self, number: signal.Signals) -> tuple[int | None, list[str]]:
        """Send the signal; returns the exit code, and what was said before the end."""
        assert self._process.pid is not None
        os.kill(self._process.pid, number)
        said = []
        while True:
            try:
                said.append(self.next_event())
            except EOFError:
                break
        self._process.join(60)
        return self._process.exitcode, said


def _train(config: TrainingConfig, directory: Path, events: Connection) -> None:
    warnings.simplefilter("ignore")
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # workers are deaf to it, a training is not
    torch.set_num_threads(1)
    result = train_ppo_vectorized(
        config,
        checkpoints=Checkpoints(directory / "checkpoints"),
        progress=lambda event: events.send(type(event).__name__),
    )
    events.send(f"stopped by {result.interrupted}")
