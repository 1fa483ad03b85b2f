"""Saying how many hosts fit on a device that is full."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


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
