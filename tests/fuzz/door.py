"""A door: where data from outside come in. Each file in this folder has one, or several of a kind."""

import signal
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import FrameType

from esper.leyline.errors import EsperError

PATIENCE_SECONDS = 60.0
LONGEST_MESSAGE = 20_000


@dataclass(frozen=True, slots=True)
class Door:
    """One way in."""

    name: str
    enter: Callable[[Random, Path], object]
    """Spoils a case with the rng, files in the folder, and brings it in; what it returns is a valid object."""
    cases: int
    """Of the 100,000 in the slow tier."""
    refusals: tuple[type[Exception], ...] = ()
    """Documented errors besides the family of EsperError."""


class Hang(BaseException):
    """A case took too long."""


def _alarm(_: int, __: FrameType | None) -> None:
    raise Hang


def try_case(door: Door, number: int, folder: Path) -> str:
    """Bring one case in; "accepted", the name of the error that refused it, or AssertionError for anything else."""
    rng = Random(f"{door.name} {number}")
    named = f"door {door.name}, case {number}"
    before = signal.signal(signal.SIGALRM, _alarm)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE_SECONDS)
    began = time.monotonic()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            door.enter(rng, folder)
        outcome = "accepted"
    except Exception as error:
        if not isinstance(error, (EsperError, *door.refusals)):
            raise AssertionError(f"{named}: {type(error).__name__}: {str(error)[:500]}") from error
        outcome, message = type(error).__name__, str(error)
        assert message.strip(), f"{named}: {outcome} says nothing"
        assert len(message) < LONGEST_MESSAGE, f"{named}: {outcome} has {len(message)} characters"
    except Hang:
        raise AssertionError(f"{named}: no end in {PATIENCE_SECONDS} s") from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
    assert time.monotonic() - began < PATIENCE_SECONDS, f"{named}: no end in {PATIENCE_SECONDS} s"
    assert not (folder / "ran").exists(), f"{named}: it executed what it read"
    return outcome
