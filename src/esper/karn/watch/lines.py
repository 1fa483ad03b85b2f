"""Episodes out of lines, in few numbers: there are too many of them to check each as the analyst's reader does."""

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple

from pydantic import JsonValue
from pydantic_core import from_json

from esper.karn.watch.texts import clipped

# The lines that were added to a file since the last look, whole ones only, in pieces that fit in memory.


PIECE = 1 << 20
LONGEST_LINE = 1 << 22
"""A line beyond this is no event of ours; it is passed over."""


@dataclass(frozen=True, slots=True)
class Piece:
    lines: list[bytes]
    """Without their ends."""
    offset: int
    """In the file, of the first of them."""


class LineTail:
    """Remembers how far a growing file was read.

    >>> tail.began_anew(file)    # is it another file, or was it cut? then forget what was read
    >>> for piece in tail.read(file): ...
    """

    __slots__ = ("_identity", "_skipping", "offset", "too_long")

    def __init__(self) -> None:
        self.offset = 0
        """Everything before this was handed out."""
        self.too_long = 0
        """Lines that were passed over."""
        self._identity: tuple[int, int] | None = None
        self._skipping = False

    def began_anew(self, file: BinaryIO) -> bool:
        """Whether this is not the file that was read before, or is shorter; reading then starts at its beginning."""
        now = os.fstat(file.fileno())
        identity = (now.st_dev, now.st_ino)
        other = self._identity is not None and (identity != self._identity or now.st_size < self.offset)
        if other:
            self.offset, self.too_long, self._skipping = 0, 0, False
        self._identity = identity
        return other

    def read(self, file: BinaryIO) -> Iterator[Piece]:
        """Whole lines from where the last reading stopped; one without its end waits for the next."""
        file.seek(self.offset)
        begun = b""  # of a line whose end is yet to come
        while data := file.read(PIECE):
            lines = data.split(b"\n")
            lines[0] = begun + lines[0]
            begun = lines.pop()
            if not lines:
                if len(begun) > LONGEST_LINE:
                    self.offset += len(begun)
                    begun, self._skipping = b"", True
                continue
            offset = self.offset
            self.offset = file.tell() - len(begun)
            if self._skipping:  # the rest of a line that was too long
                offset += len(lines.pop(0)) + 1
                self._skipping = False
                self.too_long += 1
            yield Piece(lines, offset)


Fields = dict[str, JsonValue]


class EpisodeRow(NamedTuple):
    """What is kept of an EpisodeFinished; unknown is None."""

    round: int
    env: int
    episode: int
    case: str
    epochs: int | None
    utility: float | None
    gain: float | None
    accuracy: float | None
    control_accuracy: float | None
    added_parameters: int | None
    rolled_back: str | None
    lost: bool

    @property
    def control_utility(self) -> float | None:
        return None if self.utility is None or self.gain is None else self.utility - self.gain


def fields_of(line: bytes) -> Fields | None:
    """The object of a line; None when it is none."""
    try:
        data = from_json(line, allow_inf_nan=False)
    except ValueError:
        return None
    return data if isinstance(data, dict) else None


def episode_row(data: Fields) -> EpisodeRow | None:
    """None when it does not even say which episode it was."""
    get = data.get
    round_number, env, episode = whole(get("round")), whole(get("env")), whole(get("episode"))
    if round_number is None or env is None or episode is None:
        return None
    case, rolled_back = get("case"), get("rolled_back")
    return EpisodeRow(
        round_number,
        env,
        episode,
        clipped(case) if isinstance(case, str) else "",
        whole(get("epochs")),
        real(get("utility")),
        real(get("gain")),
        real(get("validation_accuracy")),
        real(get("control_accuracy")),
        whole(get("added_parameters")),
        clipped(rolled_back) if isinstance(rolled_back, str) else None,
        get("lost") is True,
    )


def real(value: JsonValue) -> float | None:
    """A finite number; None for anything else."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1e300:
        return float(value)
    return None


def whole(value: JsonValue) -> int | None:
    """A count of any honest size; None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63 else None
