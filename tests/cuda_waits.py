"""What happens in a test when something waits for the CUDA device."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch


@contextmanager
def waits(mode: Literal["warn", "error", "default"]) -> Iterator[None]:
    """Nothing is left to wait for when it begins; afterwards waiting is allowed again."""
    torch.cuda.synchronize()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Synchronization debug mode is a prototype")
        torch.cuda.set_sync_debug_mode(mode)
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
