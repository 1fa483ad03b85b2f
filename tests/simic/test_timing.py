"""Where the time goes, by a clock that is moved by hand."""

import contextlib

import pytest

from esper.simic import timing
from esper.simic.timing import Stopwatch, seconds_in


class Clock:
    def __init__(self) -> None:
        self.now = 5.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    moved = Clock()
    monkeypatch.setattr(timing, "time", moved)
    return moved


def test_parts_inside_parts(clock: Clock) -> None:
    watch = Stopwatch()
    for _ in range(2):
        with watch.part("round"):
            clock.now += 1.0
            for _ in range(3):
                with watch.part("step"), watch.part("hosts"):
                    clock.now += 2.0
            with watch.part("hosts"):
                clock.now += 0.5
    assert watch.seconds == {"round": 15.0, "round/step": 12.0, "round/step/hosts": 12.0, "round/hosts": 1.0}
    assert seconds_in(watch.seconds, "hosts") == 13.0
    assert watch.since({"round": 14.0, "round/step": 12.0}) == {
        "round": 1.0,
        "round/step/hosts": 12.0,
        "round/hosts": 1.0,
    }
    assert watch.tree().splitlines() == [
        "round                    15.00 s",
        "  hosts                     1.00 s   6.7%",
        "  step                     12.00 s  80.0%",
        "    hosts                    12.00 s  100.0%",
    ]


def test_what_fails_is_counted_and_left(clock: Clock) -> None:
    watch = Stopwatch()
    with contextlib.suppress(KeyError), watch.part("a"), watch.part("b"):
        clock.now += 1.0
        raise KeyError
    with watch.part("c"):
        clock.now += 1.0
    assert watch.seconds == {"a/b": 1.0, "a": 1.0, "c": 1.0}
