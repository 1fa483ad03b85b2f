"""The forecast and the reward that a controller is paid in a loop without a control: known answers."""

import pytest

from esper.tamiyo.controller import RewardRecord
from esper.tamiyo.tracker import Forecast, Paymaster

PAID = RewardRecord(family="contribution", mode="shaped", rent=0.1, gamma=0.5, control_variate=True)


def test_a_damped_trend_from_before_the_birth() -> None:
    forecast = Forecast()
    for score in (0.1, 0.3, 0.4, 0.46, 0.5):
        assert forecast.advance(score, grown=False) == score
    # The window's mean change is 0.2 / 3, the last one 0.04: the smaller counts.
    assert forecast.advance(0.9, grown=True) == pytest.approx(0.5 + 0.04 * 0.7)
    assert forecast.advance(None, grown=True) == pytest.approx(0.5 + 0.04 * (0.7 + 0.49))


def test_scores_on_both_sides_of_a_seed_that_is_gone() -> None:
    forecast = Forecast()
    for score in (0.1, 0.3, 0.4):
        forecast.advance(score, grown=False)
    forecast.advance(0.9, grown=True)
    forecast.advance(0.9, grown=True)
    assert forecast.advance(0.46, grown=False) == 0.46
    # From epoch 3 to 6 it rose by 0.02 an epoch, from 1 to 6 by 0.072.
    assert forecast.advance(0.9, grown=True) == pytest.approx(0.46 + 0.02 * 0.7)
    assert forecast.advance(0.3, grown=False) == 0.3
    assert forecast.advance(0.9, grown=True) is None  # what the seed left behind is a fall


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ((), None),
        ((0.2, 0.4), None),
        ((0.2, 0.4, 0.38), 0.38),  # up, then down: no trend
        ((0.34, 0.32, 0.3), 0.3),  # it is not forecast to fall
        ((0.5, 0.6, 0.3), None),  # the data may have changed: it may recover by itself
        ((0.2, 0.6, 0.99), 1.0),  # accuracy has an end
        ((-1.0, -0.4, -0.01), 0.0),  # and so has minus a loss
    ],
)
def test_what_cannot_be_known_or_reached(scores: tuple[float, ...], expected: float | None) -> None:
    forecast = Forecast()
    for score in scores:
        forecast.advance(score, grown=False)
    found = forecast.advance(0.0, grown=True)
    assert found == (None if expected is None else pytest.approx(expected))


def test_nothing_is_paid_before_growth_and_the_difference_after() -> None:
    pay = Paymaster(0.01, PAID)
    assert [pay.pay(score, 0, 100, grown=False) for score in (0.2, 0.4, 0.4)] == [0.0, 0.0, 0.0]
    # phi = 0.5 - 0.1 * 20 / 100 - 0.4 (no trend: it stood still) = 0.08, before it 0
    assert pay.pay(0.5, 20, 100, grown=True) == pytest.approx(0.5 * 0.08)
    assert pay.pay(0.5, 20, 100, grown=True) == pytest.approx(0.5 * 0.08 - 0.08)
    assert pay.pay(None, 20, 100, grown=True) == 0.0
    assert pay.gain(0.5, 20, 100) == pytest.approx(0.5 - 0.01 * 0.2 - 0.4)
    assert pay.gain(None, 20, 100) is None


def test_without_a_control_utility_itself_is_the_potential() -> None:
    pay = Paymaster(0.01, PAID.model_copy(update={"control_variate": False}))
    pay.pay(0.2, 0, 100, grown=False)
    assert pay.pay(0.5, 0, 100, grown=False) == pytest.approx(0.5 * 0.5 - 0.2)
    sparse = Paymaster(0.01, PAID.model_copy(update={"mode": "sparse"}))
    assert [sparse.pay(score, 0, 100, grown=False) for score in (0.2, 0.5)] == [0.0, 0.0]
    assert Paymaster(0.01, None).pay(0.5, 0, 100, grown=True) == 0.0
