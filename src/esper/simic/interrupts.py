"""Stopping when asked to: a signal is noticed between steps, so that nothing is cut in the middle."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StopRequest:
    """Whether somebody asked the run to stop, and how."""

    __slots__ = ("reason",)

    def __init__(self) -> None:
        self.reason: str | None = None

    def __bool__(self) -> bool:
        return self.reason is not None


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Ctrl-C and SIGTERM become a request inside; a second one is an interrupt as always."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request  # only the main thread may handle signals
        return

    def ask(number: int, frame: FrameType | None) -> None:
        del frame
        if request:
            raise KeyboardInterrupt
        request.reason = signal.Signals(number).name

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
