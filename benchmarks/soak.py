"""Trainings under faults: each one is broken at a random moment, goes on, and must end as if nothing had happened.

    python benchmarks/soak.py               a few minutes
    python benchmarks/soak.py --count 500   so many faults in all

A survivor's last checkpoint is compared bit by bit with that of a run that nobody disturbed. The rounds lost are
those that the record had as finished and that the resumed run trained again.
"""

import argparse
import contextlib
import multiprocessing
import os
import resource
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import cycle, islice
from multiprocessing.process import BaseProcess
from pathlib import Path
from random import Random

import torch

import esper
from esper.benchmark import BenchRequest
from esper.leyline import RoundFinished
from esper.leyline.errors import EsperError
from esper.nissa import read_events
from esper.simic.agent import CheckpointError
from esper.simic.trainer import read_run_checkpoint
from harness import Row, report

ROUNDS = 12
PATIENCE_SECONDS = 300.0
"""A process that takes longer hangs."""
ERROR = "error.txt"
"""The message of a process that ended in an error by name, beside the run's folder."""
REFUSED = 2
"""Exit code of a process that ended in an error that a caller can mend."""
_FORK = multiprocessing.get_context("fork")  # torch is imported once, and a training takes a second


# What is run


def config(folder: Path, **changes: object) -> esper.TrainingConfig:
    """A training on the toy that takes about a second."""
    settings = {
        "rounds": ROUNDS,
        "num_envs": 4,
        "num_minibatches": 1,
        "n_epochs": 2,
        "pool_cases": 9,
        "eval_every": 5,
        "eval_episodes": 4,
        "run_checkpoint_every": 3,
        "run_tensorboard": False,
        "run_name": "soak",
        "run_directory": str(folder),
    }
    return esper.TrainingConfig.preset("toy", **{**settings, **changes})


def train(settings: esper.TrainingConfig, before: Callable[[], None] = lambda: None) -> None:
    """Train, or go on; the body of a process. `before` lays a trap. An error by name is left in a file, any other is
    a traceback as of the command, and an exit code of 1."""
    run = settings.run_directory / str(settings.run_name)
    before()
    try:
        esper.train(settings, resume=(run / "config.json").is_file())
    except EsperError as error:
        (settings.run_directory / ERROR).write_text(str(error))
        print(f"  {type(error).__name__}: {error}", flush=True)
        os._exit(REFUSED)


def started(body: Callable[..., None], *arguments: object) -> BaseProcess:
    process = _FORK.Process(target=body, args=arguments)
    process.start()
    return process


def ended(process: BaseProcess) -> int:
    """Its exit code; raises where it hangs."""
    process.join(PATIENCE_SECONDS)
    if process.exitcode is None:
        process.kill()
        raise Failure("it hangs")
    return process.exitcode


def require_end(process: BaseProcess, folder: Path) -> None:
    """Raise unless a disturbed training came to its end, or to an error by name that names a file of the run."""
    code, error = ended(process), folder / ERROR
    if code not in (0, REFUSED):
        raise Failure(f"it ended with exit code {code}")
    if code == REFUSED and str(folder / "soak") not in error.read_text():
        raise Failure(f"its error names no file: {error.read_text()}")


# What is compared


class Failure(Exception):
    """A survivor that is not what it should be."""


def final_state(settings: esper.TrainingConfig) -> dict[str, object]:
    """Everything in the last checkpoint but the settings, which name the folder."""
    path = settings.run_directory / str(settings.run_name) / "checkpoints" / "last.pt"
    state: dict[str, object] = torch.load(path, weights_only=True)
    extra = state["extra"]
    assert isinstance(extra, dict)
    return {**state, "extra": {name: part for name, part in extra.items() if name != "config"}}


def same(one: object, other: object) -> bool:
    """Bit by bit; NaN is NaN."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and _bytes(one) == _bytes(other)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and (one == other or (one != one and other != other))


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().numpy().tobytes()


@cache
def reference(**changes: object) -> tuple[dict[str, object], float]:
    """The last checkpoint of an undisturbed training, and the seconds that it took."""
    folder = Path(tempfile.mkdtemp(prefix="esper-soak-"))
    settings, began = config(folder, **changes), time.monotonic()
    if ended(started(train, settings)):
        raise SystemExit("the undisturbed training failed")
    seconds, state = time.monotonic() - began, final_state(settings)
    shutil.rmtree(folder)
    return state, seconds


def rounds_recorded(settings: esper.TrainingConfig) -> int:
    """The last round that the record has as finished; 0 without a record."""
    path = settings.run_directory / str(settings.run_name) / "events.jsonl"
    if not path.exists():
        return 0
    events = [record.event for record in read_events(path)]
    return max((event.round for event in events if isinstance(event, RoundFinished)), default=0)


def rounds_saved(settings: esper.TrainingConfig) -> int:
    """The round that a resumed run goes on from."""
    run = settings.run_directory / str(settings.run_name) / "checkpoints"
    rounds = [0]
    for path in run.glob("*.pt"):
        with contextlib.suppress(CheckpointError):
            rounds.append(read_run_checkpoint(path)["extra"]["round"])
    return max(rounds)


def finish(settings: esper.TrainingConfig, expected: dict[str, object]) -> int:
    """Let a disturbed training come to its end; returns the rounds lost."""
    lost = rounds_recorded(settings) - rounds_saved(settings)
    if ended(started(train, settings)):
        raise Failure("it does not go on")
    if not same(final_state(settings), expected):
        raise Failure("it is not what an undisturbed training gives")
    return max(lost, 0)


# Faults: each takes an rng and an empty folder, disturbs a training, and returns the rounds lost


def killed(rng: Random, folder: Path, *, workers: int = 0) -> int:
    """By SIGKILL at random moments, up to three times."""
    expected, seconds = reference()
    settings, lost = config(folder, workers=workers), 0
    for _ in range(rng.choice((1, 1, 2, 3))):
        before = rounds_saved(settings)
        process = started(train, settings)
        process.join(rng.uniform(0.0, seconds * (3 if workers else 1)))
        process.kill()
        ended(process)
        if rounds_saved(settings) < before:
            raise Failure("a checkpoint is gone")
        lost = max(lost, rounds_recorded(settings) - rounds_saved(settings))
    return max(lost, finish(settings, expected))


def killed_while_saving(rng: Random, folder: Path) -> int:
    """By SIGKILL around one of the steps in which a file takes its place."""
    expected, _ = reference()
    settings = config(folder)
    step, call, before = rng.choice(("fsync", "replace")), rng.randrange(1, 40), rng.random() < 0.5

    def trap() -> None:
        real, calls = getattr(os, step), Counter[str]()

        def stepped(*arguments: object) -> None:
            calls["made"] += 1
            if before and calls["made"] == call:
                os.kill(os.getpid(), signal.SIGKILL)
            real(*arguments)
            if calls["made"] == call:
                os.kill(os.getpid(), signal.SIGKILL)

        setattr(os, step, stepped)

    ended(started(train, settings, trap))
    return finish(settings, expected)


def last_checkpoint_damaged(rng: Random, folder: Path) -> int:
    """Bytes of the last checkpoint, and of the one before half of the time, are overwritten."""
    changes = {"eval_every": 0, "run_checkpoint_every": 5}  # no other is of the last round
    expected, _ = reference(**changes)
    settings = config(folder, **changes)
    if ended(started(train, settings)):
        raise Failure("the training failed")
    for name in rng.choice((["last.pt"], ["last.pt", "previous.pt"])):
        path = folder / "soak" / "checkpoints" / name
        content = bytearray(path.read_bytes())
        place = rng.randrange(len(content) - 4096)
        content[place : place + 4096] = rng.randbytes(4096)
        path.write_bytes(content)
    lost = finish(settings, expected)
    if not lost:
        raise Failure("the damage was not noticed")
    return lost


def full_disk(rng: Random, folder: Path) -> int:
    """From a random file on none may grow over a random size: writing ends in an OSError, as on a full disk."""
    expected, _ = reference()
    settings, most, call = config(folder), rng.randrange(2_000, 200_000), rng.randrange(1, 30)

    def trap() -> None:
        real, calls = os.fsync, Counter[str]()

        def stepped(file: object) -> None:
            calls["made"] += 1
            if calls["made"] == call:
                resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
            real(file)  # type: ignore[arg-type]

        os.fsync = stepped  # type: ignore[assignment]

    require_end(started(train, settings, trap), folder)
    return finish(settings, expected)


def folder_vanishes(rng: Random, folder: Path) -> int:
    """The run's folder is removed at a random moment: it is trained anew, and nothing of the old one is left."""
    expected, seconds = reference()
    settings = config(folder)
    process = started(train, settings)
    process.join(rng.uniform(0.1, 1.0) * seconds)
    lost = rounds_recorded(settings)
    shutil.rmtree(folder / "soak", ignore_errors=True)
    require_end(process, folder)
    shutil.rmtree(folder / "soak", ignore_errors=True)
    finish(settings, expected)
    return lost


def two_writers(rng: Random, folder: Path) -> int:
    """A second process takes up a run that is being written: it is refused, and the first goes on."""
    expected, seconds = reference()
    settings = config(folder)
    process = started(train, settings)
    process.join(rng.uniform(0.3, 0.8) * seconds)
    if (folder / "soak" / "config.json").exists() and process.exitcode is None:
        second = ended(started(train, settings))
        if second != REFUSED and process.exitcode is None:
            raise Failure("a second writer was let in")
    if ended(process):
        raise Failure("the first writer failed")
    return finish(settings, expected)


def two_trainings(rng: Random, folder: Path) -> int:
    """Two trainings with hosts that are trained, over one cache of baseline curves; one of them is killed."""
    hosts = {
        "suite": "mnist1d:size=1000",
        "horizon": 6,
        "rounds": 1,
        "num_envs": 2,
        "pool_cases": 1,
        "pool_host_seeds": 2,
        "eval_every": 0,
    }
    os.environ["ESPER_CACHE"] = str(folder / "alone")
    expected, seconds = reference(**hosts)
    os.environ["ESPER_CACHE"] = str(folder / "cache")
    both = [config(folder / name, **hosts) for name in ("one", "two")]
    processes = [started(train, settings) for settings in both]
    processes[0].join(rng.uniform(0.0, 2.0) * seconds)
    processes[0].kill()
    ended(processes[0])
    if ended(processes[1]):
        raise Failure("the other training failed")
    return max(finish(settings, expected) for settings in both)


# Benches


def play(folder: Path) -> None:
    try:
        esper.bench(folder, BenchRequest(suite="toy", arms=("plateau", "random"), seeds=2, instances=6))
    except EsperError as error:
        print(f"  {type(error).__name__}: {error}", flush=True)
        os._exit(REFUSED)


def rows(folder: Path) -> list[object]:
    """Of a bench, without what a clock says."""
    return [replace(row, wall_seconds=0.0) for row in esper.benchmark.read_bench(folder).rows]


def two_benches(rng: Random, folder: Path) -> int:
    """Two benches in one folder, one of which is killed: the rows are those of one bench."""
    began = time.monotonic()
    if ended(started(play, folder / "alone")):
        raise Failure("the undisturbed bench failed")
    seconds = time.monotonic() - began
    processes = [started(play, folder / "both")]
    time.sleep(rng.uniform(0.0, 0.5) * seconds)
    processes.append(started(play, folder / "both"))
    if rng.random() < 0.5:
        time.sleep(rng.uniform(0.0, 0.5) * seconds)
        processes[rng.randrange(2)].kill()
    codes = {ended(process) for process in processes}
    if not codes <= {0, REFUSED, -signal.SIGKILL} or ended(started(play, folder / "both")):
        raise Failure(f"a bench failed ({codes})")
    if rows(folder / "both") != rows(folder / "alone"):
        raise Failure("the rows differ from those of one bench")
    return 0


FAULTS: dict[str, Callable[[Random, Path], int]] = {
    "killed": killed,
    "killed while saving": killed_while_saving,
    "last checkpoint damaged": last_checkpoint_damaged,
    "full disk": full_disk,
    "folder vanishes": folder_vanishes,
    "two writers on one run": two_writers,
    "two benches, one folder": two_benches,
    "killed, with workers": partial(killed, workers=2),
    "two trainings, one cache": two_trainings,
}
"""fault -> how it is tried"""


@dataclass
class Tally:
    """What came of one kind of fault."""

    tried: int = 0
    lost: int = 0
    failures: list[str] = field(default_factory=list)


def soak(count: int, seed: int) -> dict[str, Tally]:
    """Try so many faults, one of each kind in turn."""
    tallies = {name: Tally() for name in FAULTS}
    for number, name in enumerate(islice(cycle(FAULTS), count)):
        tally, folder = tallies[name], Path(tempfile.mkdtemp(prefix="esper-soak-"))
        tally.tried += 1
        try:
            lost = FAULTS[name](Random(f"{seed} {number}"), folder)
            tally.lost = max(tally.lost, lost)
            print(f"{number + 1} of {count}: {name}, rounds lost: {lost}", flush=True)
        except Failure as failure:
            tally.failures.append(f"fault {number} of seed {seed}: {failure}")
            print(f"  FAILED {name}: {tally.failures[-1]}", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
    return tallies


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=60, help="faults to try (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="rng seed of the moments (%(default)s)")
    parser.add_argument("--out", type=Path, help="where the table is written as JSON (results/soak.json)")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    tallies = soak(chosen.count, chosen.seed)
    table: list[Row] = [
        {
            "fault": name,
            "tried": tally.tried,
            "rounds lost at most": tally.lost,
            "failures": len(tally.failures),
        }
        for name, tally in tallies.items()
    ]
    report(
        "soak",
        f"{chosen.count} faults, seed {chosen.seed}; trainings of {ROUNDS} rounds",
        table,
        out=chosen.out,
    )
    return int(any(tally.failures for tally in tallies.values()))


if __name__ == "__main__":
    raise SystemExit(main())
