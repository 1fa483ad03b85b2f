"""Memory: keeping what was freed on the CPU, and saying how many hosts fit on a device that is full."""

import ctypes
import ctypes.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

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


class OutOfDeviceMemory(RuntimeError):
    """The device is too small for this many hosts."""


@contextmanager
def room_for(hosts: int, *, placed: int, device: torch.device) -> Iterator[None]:
    """Out of memory inside, where the next host is placed, becomes a message with the number that would fit."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        total = torch.cuda.get_device_properties(device).total_memory / 2**30
        raise OutOfDeviceMemory(
            f"{hosts} hosts do not fit on {device} ({total:.0f} GiB): it was full after {placed}, so about {placed} "
            "would fit. Use fewer hosts, a smaller batch, or another device"
        ) from error
