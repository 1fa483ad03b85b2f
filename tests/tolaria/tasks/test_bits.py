"""Slowly changing regression: the function's known values, the bits that stand still, and a life on them."""

import numpy as np
import pytest
import torch

from esper.benchmark.arms import Hosts, RuleArm
from esper.benchmark.playing import play_chunk
from esper.benchmark.stream_rivals import StreamArm, stream_rivals, wide_cases
from esper.tolaria.data.drawn import BITS, UNITS, BitFunction, slow_states, some_bits
from esper.tolaria.tasks import Instance, ParameterError
from esper.tolaria.upkeep import hidden_units


def test_a_unit_is_on_where_fourteen_bits_agree_with_its_signs() -> None:
    signs = np.ones((2, BITS), dtype=np.int64)
    signs[1, :10] = -1
    function = BitFunction(signs, np.array([1, -3]))
    ones, bits = np.ones(BITS, dtype=np.int64), np.ones((4, BITS), dtype=np.int64)
    bits[1, :6] = 0  # 14 agree with the first unit; of the second, 6 zeros and 10 ones
    bits[2, :7] = 0  # 13; 17
    bits[3, :10] = 0  # 10; all
    assert function(bits)[:, 0].tolist() == [1.0, 1.0 - 3.0, -3.0, -3.0]
    assert function(ones[None]).shape == (1, 1)
    assert BitFunction(signs, np.array([1, -3]), mean=1.0, deviation=2.0)(bits)[:, 0].tolist() == [
        0,
        -1.5,
        -2,
        -2,
    ]


def test_a_drawn_function_has_mean_0_and_deviation_1() -> None:
    rng = np.random.default_rng(3)
    function = BitFunction.drawn(rng)
    assert function.signs.shape == (UNITS, BITS)
    values = function(rng.integers(2, size=(20_000, BITS)))
    assert abs(values.mean()) < 0.06
    assert values.std() == pytest.approx(1.0, abs=0.06)


def test_one_bit_flips_from_a_state_to_the_next() -> None:
    rng = np.random.default_rng(0)
    states = slow_states(15, 40, rng)
    assert states.shape == (40, 15)
    assert set(np.unique(states)) == {0, 1}
    assert (np.abs(np.diff(states, axis=0)).sum(1) == 1).all()
    assert len(set(np.abs(np.diff(states, axis=0)).argmax(1))) > 8
    some = some_bits(states[0], 200, rng)
    assert (some[:, :15] == states[0]).all()
    assert len(np.unique(some[:, 15:], axis=0)) == 32


def test_a_stream_has_a_phase_for_each_state() -> None:
    data = Instance.parse("slow_bits:every=8,size=100").load()
    assert [phase.start_epoch for phase in data.phases] == list(range(0, 100, 8))
    for phase in data.phases:
        assert (len(phase.train), len(phase.validation)) == (100, 256)
        assert phase.test is not None
        assert phase.train.regression
        assert phase.train.inputs[:, :15].unique(dim=0).shape == (1, 15)
        assert phase.validation.variance > 0.0
    states = torch.stack([phase.train.inputs[0, :15] for phase in data.phases])
    assert (states.diff(dim=0).abs().sum(1) == 1).all()
    with pytest.raises(ParameterError, match="slow must be"):
        Instance.parse("slow_bits:slow=17")


def test_no_phase_is_a_constant() -> None:
    """Explained variance needs some variance, also where most bits stand still."""
    for seed in range(3):
        for phase in Instance.of("slow_bits", {"slow": 16, "data": seed}).load().phases:
            assert phase.validation.variance > 0.0


def test_a_wide_learner_has_all_that_its_cap_allows() -> None:
    case = "slow_bits:cap=2.0,every=25"
    instance = Instance.parse(case)
    bare = sum(weight.numel() for weight in instance.row.host(instance.load()).parameters())
    assert bare == 20 * 5 + 5 + 5 * 5 + 5 + 5 + 1
    with wide_cases([case, case], bare) as wide:
        assert wide[0] == wide[1] != case
        host = Instance.parse(wide[0]).row.host(instance.load())
    assert sum(weight.numel() for weight in host.parameters()) == pytest.approx(3 * bare, rel=0.06)
    assert [units.count for units in hidden_units(host)] == [12, 12]


@pytest.mark.slow
def test_rivals_live_on_bits() -> None:
    case = "slow_bits:every=20"
    (waited,) = play_chunk(RuleArm("wait"), Hosts(case, case, (0,)))
    known = {("wait", 0, case): [waited]}
    redo = next(rival for rival in stream_rivals() if rival.name == "redo" and not rival.wide)
    wide = next(rival for rival in stream_rivals() if rival.name == "wide")
    rows = [play_chunk(StreamArm(rival), Hosts(case, case, (0,), known))[0] for rival in (redo, wide)]
    for row in (waited, *rows):
        curve = [score for score in row.validation_accuracies if score is not None]
        assert all(0.0 <= score <= 1.0 for score in curve)
        assert np.mean(curve[15:21]) > 0.1  # it learns within the first state
        assert row.utility is not None
    assert rows[1].life_added == 10 * 10 + 23 * 10 + 1 - 141  # of width 10, the nearest to 1.5 x 141 more
    assert rows[0].host_parameters == 141
