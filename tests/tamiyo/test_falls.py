"""When validation counts as fallen."""

from collections.abc import Sequence

import pytest

from esper.tamiyo.tracker import LOOK_BACK, SCORES_KEPT, Level


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
