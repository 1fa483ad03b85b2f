"""Keeping freed memory: on the CPU, blocks that go back to the system come back as page faults."""

import ctypes
import ctypes.util
import sys

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # of glibc's malloc.h
_NEVER = 2**31 - 1


def keep_freed_memory() -> bool:
    """Tell glibc to keep freed blocks for the next forward instead of unmapping them; False where there is no glibc.

    For processes that do nothing but train small hosts: their activations are of the same sizes again and again.
    """
    if not sys.platform.startswith("linux"):
        return False
    name = ctypes.util.find_library("c")
    mallopt = getattr(ctypes.CDLL(name), "mallopt", None) if name else None
    if mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_MAX, 0)) and bool(mallopt(_M_TRIM_THRESHOLD, _NEVER))
