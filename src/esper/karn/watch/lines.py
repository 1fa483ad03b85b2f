"""Reading a growing file: the lines added since the last look, whole ones only, in pieces that fit in memory."""

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

PIECE = 1 << 20
"""Bytes read at a time."""
LONGEST_LINE = 1 << 22
"""Bytes; a longer line cannot be an event and is skipped."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Neighbouring lines of a file."""

    lines: list[bytes]
    """Without their newlines."""
    offset: int
    """Offset of the first of them in the file, in bytes."""


class LineTail:
    """Remembers how far a growing file was read.

    >>> tail.began_anew(file)    # is it another file, or was it cut? then forget what was read
    >>> for piece in tail.read(file): ...
    """

    __slots__ = ("_identity", "_skipping", "offset", "too_long")

    def __init__(self) -> None:
        self.offset = 0
        """Bytes whose lines were returned."""
        self.too_long = 0
        """Lines that were skipped because of their length."""
        self._identity: tuple[int, int] | None = None
        self._skipping = False

    def began_anew(self, file: BinaryIO) -> bool:
        """Whether this is another file than before, or it is shorter now; reading then starts at its beginning."""
        now = os.fstat(file.fileno())
        identity = (now.st_dev, now.st_ino)
        other = self._identity is not None and (identity != self._identity or now.st_size < self.offset)
        if other:
            self.offset, self.too_long, self._skipping = 0, 0, False
        self._identity = identity
        return other

    def read(self, file: BinaryIO) -> Iterator[Piece]:
        """Whole lines from where the last reading stopped; a line without its newline waits for the next reading."""
        file.seek(self.offset)
        begun = b""  # the start of a line whose end is not yet written
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


def real(value: object) -> float | None:
    """A finite number; None for anything else."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1e300:
        return float(value)
    return None


def whole(value: object) -> int | None:
    """A count that fits in 63 bits; None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63 else None
