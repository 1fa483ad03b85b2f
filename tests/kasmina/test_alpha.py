import math
from itertools import pairwise

import pytest

from esper.kasmina.stage_machine import Ramp, curve_value
from esper.leyline import Curve


@pytest.mark.parametrize("curve", Curve)
def test_curves_are_monotone_with_exact_ends(curve: Curve) -> None:
    values = [curve_value(curve, step / 97) for step in range(98)]
    assert values[0] == 0.0
    assert values[-1] == 1.0
    assert all(low < high for low, high in pairwise(values))


@pytest.mark.parametrize("curve", Curve)
def test_curves_are_symmetric(curve: Curve) -> None:
    assert curve_value(curve, 0.5) == pytest.approx(0.5)
    assert curve_value(curve, 0.2) + curve_value(curve, 0.8) == pytest.approx(1.0)


def test_known_values() -> None:
    assert curve_value(Curve.LINEAR, 0.3) == 0.3
    assert curve_value(Curve.COSINE, 1 / 3) == pytest.approx(0.25)
    logistic = [1 / (1 + math.exp(-10 * (p - 0.5))) for p in (0.0, 0.3, 1.0)]
    expected = (logistic[1] - logistic[0]) / (logistic[2] - logistic[0])
    assert curve_value(Curve.SIGMOID_NORMAL, 0.3) == pytest.approx(expected)


def test_sharper_sigmoids_start_slower() -> None:
    kinds = (Curve.SIGMOID_GENTLE, Curve.SIGMOID_NORMAL, Curve.SIGMOID_SHARP)
    early = [curve_value(kind, 0.2) for kind in kinds]
    assert early == sorted(early, reverse=True)


@pytest.mark.parametrize("curve", Curve)
@pytest.mark.parametrize(("start", "target"), [(0.0, 0.7), (1.0, 0.5), (0.7, 0.0)])
@pytest.mark.parametrize("epochs", [3, 5, 8])
def test_ramps_arrive_exactly_and_on_time(curve: Curve, start: float, target: float, epochs: int) -> None:
    ramp = Ramp(start, target, epochs, curve)
    path = [start]
    for epoch in range(epochs):
        assert (ramp.arrived, ramp.epochs_left) == (False, epochs - epoch)
        path.append(ramp.tick())
    assert (ramp.arrived, ramp.epochs_left, path[-1]) == (True, 0, target)
    assert path == sorted(path, reverse=target < start)


def test_speed_zero_arrives_on_the_next_tick() -> None:
    ramp = Ramp(0.5, 1.0, 0, Curve.LINEAR)
    assert not ramp.arrived
    assert ramp.tick() == 1.0
    assert ramp.arrived
