"""Where the time goes, by a clock that is moved by hand."""

import contextlib
import signal
from itertools import pairwise

import pytest

from esper.simic import timing
from esper.simic.timing import SteadyEstimate, Stopwatch, UnitTimes, seconds_in, stop_on_signals


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


def test_an_estimate_that_is_shown_never_doubles() -> None:
    """A first unit that took 1 s where the others take 40 would show 19 s, and then 390."""
    now, shown = 0.0, list[float]()
    steady = SteadyEstimate(lambda: now)
    for seconds in (1.0, *[40.0] * 19):
        now += seconds
        done = len(shown) + 1
        shown.append(steady.take(now / done * (20 - done)))
    assert shown[0] == 19.0
    assert all(later <= 1.25 * earlier for earlier, later in pairwise(shown))
    assert shown[12] == pytest.approx(40.0 * 7, rel=0.25)  # by then it has found out
    assert shown[-1] == 0.0


def test_an_estimate_counts_down_between_two_that_agree() -> None:
    now = 100.0
    steady = SteadyEstimate(lambda: now)
    assert steady.take(60.0) == 60.0
    now = 110.0
    assert steady.take(50.0) == 50.0
    assert steady.take(10.0) == 30.0  # half way
    now = 180.0
    assert steady.take(0.1) == 2.0  # there is work, and nothing grows from 0


def test_units_of_several_kinds_take_their_own_time() -> None:
    times = UnitTimes()
    assert times.of("grown") is None
    times.add("alone", 2.0)
    assert times.of("grown") == 2.0  # not met yet
    times.add("grown", 21.0, units=3)
    assert (times.of("alone"), times.of("grown"), times.of("wide")) == (2.0, 7.0, 23.0 / 4)


@pytest.mark.parametrize(("number", "name"), [(signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM")])
def test_a_stop_has_the_name_that_people_know(number: signal.Signals, name: str) -> None:
    with stop_on_signals() as stop:
        signal.raise_signal(number)
        with pytest.raises(KeyboardInterrupt, match=name):
            signal.raise_signal(number)
    assert stop.reason == name
