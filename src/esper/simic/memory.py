"""How much memory this process has needed."""

import resource
import sys

_UNIT = 1 if sys.platform == "darwin" else 1024
"""Bytes in what the system counts in: kibibytes, except on macOS."""


def peak_memory_bytes() -> int:
    """The most this process has held in memory at once since it began."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _UNIT
