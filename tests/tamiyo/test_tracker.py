"""The plateau, short histories and their slopes."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from esper.leyline import LifecycleOp
from esper.tamiyo.tracker import HISTORY, LOOK_BACK, SCORES_KEPT, TRACKED, Level, SignalTracker, trend
from watched import DORMANT, paper_host, report

NAN = math.nan


def test_trends_of_known_answers() -> None:
    window = np.array(
        [
            [0.0, 5.0, NAN, 0.0, NAN],
            [1.0, 9.0, NAN, 1.0, NAN],
            [2.0, NAN, NAN, 1.0, NAN],
            [4.0, 1.0, NAN, 5.0, NAN],
            [8.0, 3.0, NAN, NAN, 6.0],
        ]
    )
    change, slope = trend(window)
    np.testing.assert_allclose(change, [4.0, 2.0, NAN, NAN, NAN])
    np.testing.assert_allclose(slope, [2.0, 2.0, NAN, NAN, NAN])  # the second: only its unbroken run counts


@settings(deadline=None)
@given(start=st.floats(-10, 10), slope=st.floats(-10, 10), epochs=st.integers(2, 7), hosts=st.integers(1, 3))
def test_a_straight_line_has_its_own_slope(start: float, slope: float, epochs: int, hosts: int) -> None:
    line = start + slope * np.arange(epochs)
    change, measured = trend(np.tile(line[:, np.newaxis], (hosts, 1, 2)))
    np.testing.assert_allclose(change, slope, atol=1e-9)
    np.testing.assert_allclose(measured, slope, atol=1e-9)


def test_a_plateau_counts_from_the_last_real_improvement() -> None:
    tracker = SignalTracker(20, plateau_threshold=0.01)
    lengths = []
    for epoch, accuracy in enumerate([0.1, 0.5, 0.505, 0.509, 0.51, 0.4, 0.6]):
        tracker.record(report(epoch, accuracy), [])
        lengths.append(tracker.plateau)
    # creeping up by less than the threshold each time still counts once it adds up
    assert lengths == [0, 0, 1, 2, 0, 1, 0]


def test_without_accuracy_the_loss_counts() -> None:
    tracker = SignalTracker(20, plateau_threshold=0.01)
    lengths = []
    for epoch, loss in enumerate([3.0, 2.0, 2.5, math.inf, 1.0]):
        tracker.record(report(epoch, None, loss=loss), [])
        lengths.append(tracker.plateau)
    assert lengths == [0, 0, 1, 2, 0]


def test_a_plateau_begins_with_the_first_score() -> None:
    tracker = SignalTracker(20, plateau_threshold=0.01)
    lengths = []
    for epoch, loss in enumerate([math.nan, math.nan, 2.0, math.nan, 2.0, 1.0]):
        tracker.record(report(epoch, None, loss=loss), [])
        lengths.append(tracker.plateau)
    assert lengths == [0, 0, 0, 1, 2, 0]


def test_the_window_holds_the_last_epochs() -> None:
    tracker = SignalTracker(20)
    for epoch, contribution in enumerate([NAN, 0.1, 0.2, 0.4, 0.6]):
        slots = [DORMANT, DORMANT._replace(contribution=contribution)]
        known = report(epoch, 0.1 * epoch, loss=4.0 - epoch, train_loss=None if epoch < 3 else 1.0)
        tracker.record(known, slots)
    _, slope = trend(np.array(tracker.window).reshape(HISTORY, len(TRACKED) + 2))
    np.testing.assert_allclose(slope, [0.0, NAN, -1.0, 0.1, NAN, 0.5 / 3])
    with pytest.raises(ValueError, match="slots has 1 readings; expected 2"):
        tracker.record(report(4), [DORMANT])


def test_signals_leave_unknown_what_is_not_a_number() -> None:
    host = paper_host("a", report=report(0, 0.3, gradient_norm=math.inf))
    tracker = SignalTracker(7)
    tracker.record(host.report, host.rows)
    signals = tracker.signals(host, LifecycleOp.PRUNE, 500)
    assert (signals.epoch, signals.horizon, signals.training_samples) == (0, 7, 1000)
    assert (signals.validation_accuracy, signals.validation_loss) == (0.3, 1.0)
    assert signals.train_loss is signals.train_accuracy is signals.gradient_norm is None
    assert (signals.host_parameters, signals.added_parameters, signals.parameter_budget) == (1000, 0, 500)
    assert signals.last_operation is LifecycleOp.PRUNE


def test_state_is_taken_up_exactly() -> None:
    one = SignalTracker(20, plateau_threshold=0.02)
    for epoch in range(4):
        one.record(report(epoch, 0.5 + 0.001 * epoch), [DORMANT])
    other = SignalTracker.from_state(one.state_dict())
    for tracker in (one, other):
        tracker.record(report(4, 0.9), [DORMANT])
    assert repr(one.state_dict()) == repr(other.state_dict())
    assert one.plateau == other.plateau == 0
    with pytest.raises(ValueError, match="window has 1 numbers; expected 4 x 5"):
        SignalTracker.from_state({**one.state_dict(), "window": [1.0]})
    for name, wrong in (("plateau", "long"), ("best", None), ("window", 3.0)):
        with pytest.raises(TypeError, match=f"{name} is {wrong!r}; expected that of a state_dict"):
            SignalTracker.from_state({**one.state_dict(), name: wrong})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"horizon": 0}, "horizon is 0; expected >= 1"),
        ({"plateau_threshold": NAN}, "plateau_threshold is nan; expected >= 0"),
    ],
)
def test_nonsense_is_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SignalTracker(**{"horizon": 5, **options})  # type: ignore[arg-type]


def test_it_has_slots() -> None:
    assert not hasattr(SignalTracker(3), "__dict__")


# When validation counts as fallen.


def lost(scores: Sequence[float | None], *, drop: float = 0.1, patience: int = 2) -> list[int]:
    """The epochs at which a level was lost."""
    level = Level()
    found = [level.record(score, drop=drop, patience=patience) for score in scores]
    return [epoch for epoch, before in enumerate(found) if before is not None]


@pytest.mark.parametrize(
    ("scores", "epochs"),
    [
        ([0.5, 0.6, 0.7, 0.8], []),
        ([0.8, 0.71, 0.71, 0.71], []),  # not by as much
        ([0.8, 0.6, 0.8, 0.6, 0.8], []),  # each a false alarm
        ([0.8, 0.6, 0.6], [2]),
        ([0.8, 0.6, None, 0.6], [3]),  # what is unknown counts neither way
        ([0.8, 0.6, 0.6, 0.6, 0.55], [2]),  # the new level is held
        ([0.8, 0.6, 0.6, 0.7, 0.5, 0.5], [2, 5]),
        ([-1.0, -1.2, -1.2], [2]),  # minus a loss
    ],
)
def test_a_fall_is_below_the_level_for_some_epochs_in_a_row(
    scores: list[float | None], epochs: list[int]
) -> None:
    assert lost(scores) == epochs


def test_the_level_is_of_the_last_epochs() -> None:
    slow = [1.0 - 0.05 * epoch for epoch in range(10)]
    assert lost(slow)  # ten epochs ago it was half more
    assert not lost([1.0 - 0.009 * epoch for epoch in range(100)])  # what sinks this slowly is not a change


def test_what_was_lost_is_returned_and_a_new_level_begins() -> None:
    level = Level()
    for score in (0.7, 0.8, 0.3):
        assert level.record(score, drop=0.1, patience=2) is None
    assert level.record(0.4, drop=0.1, patience=2) == 0.8
    assert (level.now, level.below) == (0.4, 0)


def test_its_size_does_not_grow() -> None:
    level = Level()
    for epoch in range(500):
        level.record((epoch % 7) / 10, drop=0.3, patience=2)
    assert len(level.held) <= LOOK_BACK
    assert len(level.scores) == SCORES_KEPT
