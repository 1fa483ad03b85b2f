"""The lines that were added to a file since the last look, whole ones only, in pieces that fit in memory."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

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
