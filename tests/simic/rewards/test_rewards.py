"""SPEC E3: rewards are pure functions from `RewardInputs` to named components whose sum is the reward."""

import math
from dataclasses import asdict, replace

import pytest
from hypothesis import given

from esper.leyline import LifecycleOp, RewardInputs, Standing
from esper.simic.reward import COMPONENT_NAMES, RewardConfig, compute_reward
from reward_strategies import configs, ends, standings

HOST = 100
BEFORE = Standing(accuracy=0.5, loss=1.0, added_parameters=20, control_accuracy=0.4, control_loss=1.2)
AFTER = Standing(accuracy=0.7, loss=0.8, added_parameters=50, control_accuracy=0.45, control_loss=1.1)


def step(**changes: object) -> RewardInputs:
    fields: dict[str, object] = {
        "operation": LifecycleOp.WAIT,
        "before": BEFORE,
        "after": AFTER,
        "host_parameters": HOST,
        "untrained_loss": 2.0,
        "terminated": False,
        "truncated": False,
        "rolled_back": False,
    }
    return RewardInputs(**{**fields, **changes})  # type: ignore[arg-type]


def accuracy_only(**options: object) -> RewardConfig:
    return RewardConfig(rent=0.1, gamma=0.5, control_variate=False, **options)  # type: ignore[arg-type]


# Known answers, family contribution: U(before) = 0.5 - 0.1 * 0.2 = 0.48, U(after) = 0.7 - 0.1 * 0.5 = 0.65


def test_sparse_pays_the_utility_at_the_end_only() -> None:
    config = accuracy_only(mode="sparse")
    assert compute_reward(config, step()).total == 0.0
    assert compute_reward(config, step(terminated=True)).total == pytest.approx(0.65)
    assert compute_reward(config, step(truncated=True)).total == 0.0


def test_shaped_pays_the_discounted_rise_of_utility() -> None:
    assert compute_reward(accuracy_only(), step()).total == pytest.approx(0.5 * 0.65 - 0.48)


def test_the_potential_is_zero_at_the_end_and_stays_at_truncation() -> None:
    last = compute_reward(accuracy_only(), step(terminated=True))
    assert last.potential_after == 0.0
    assert last.total == pytest.approx(0.65 - 0.48)
    cut = compute_reward(accuracy_only(), step(truncated=True))
    assert cut.total == pytest.approx(0.5 * 0.65 - 0.48)
    assert cut.final_score == 0.0


def test_the_control_is_subtracted_from_every_utility() -> None:
    config = replace(accuracy_only(), control_variate=True)
    before, after = 0.48 - 0.4, 0.65 - 0.45
    assert compute_reward(config, step()).total == pytest.approx(0.5 * after - before)
    assert compute_reward(config, step(terminated=True)).total == pytest.approx(after - before)


def test_an_end_by_the_governor_pays_nothing_and_a_penalty() -> None:
    condemned = Standing(accuracy=math.nan, loss=math.nan, added_parameters=50, control_accuracy=0.45)
    lost = step(after=condemned, terminated=True, rolled_back=True)
    assert compute_reward(accuracy_only(), lost).total == pytest.approx(-1.0 - 0.48)
    config = RewardConfig(rent=0.1, rollback_penalty=3.0)
    assert compute_reward(config, lost).total == pytest.approx(0.0 - 0.45 - 3.0 - (0.48 - 0.4))


def test_the_loss_family_scales_by_the_untrained_loss() -> None:
    config = accuracy_only(family="loss")
    before, after = -1.0 / 2.0 - 0.02, -0.8 / 2.0 - 0.05
    assert compute_reward(config, step()).total == pytest.approx(0.5 * after - before)
    assert compute_reward(config, step(terminated=True)).total == pytest.approx(after - before)
    controlled = replace(config, control_variate=True)
    assert compute_reward(controlled, step(terminated=True)).total == pytest.approx(
        (after + 1.1 / 2.0) - (before + 1.2 / 2.0)
    )
    # A lost host is worth an untrained one, not a perfect one.
    lost = compute_reward(config, step(terminated=True, rolled_back=True))
    assert lost.total == pytest.approx(-1.0 - 1.0 - before)


def test_no_accuracy_is_needed_for_the_loss_family() -> None:
    blind = {
        "before": replace(BEFORE, accuracy=None, control_accuracy=None),
        "after": replace(AFTER, accuracy=None, control_accuracy=None),
    }
    assert math.isfinite(compute_reward(RewardConfig(family="loss"), step(**blind)).total)
    with pytest.raises(ValueError, match="accuracy is unknown"):
        compute_reward(RewardConfig(), step(**blind))


def test_what_is_unknown_is_never_taken_for_zero() -> None:
    uncontrolled = replace(AFTER, control_accuracy=None)
    with pytest.raises(ValueError, match="control_accuracy is unknown"):
        compute_reward(RewardConfig(), step(after=uncontrolled))
    with pytest.raises(ValueError, match="only a rollback may end in such numbers"):
        compute_reward(RewardConfig(), step(after=replace(AFTER, accuracy=math.nan)))
    with pytest.raises(ValueError, match=r"untrained_loss is 0.0"):
        compute_reward(RewardConfig(family="loss"), step(untrained_loss=0.0))


def test_impossible_ends_are_refused() -> None:
    with pytest.raises(ValueError, match="rolled_back without terminated"):
        compute_reward(RewardConfig(), step(rolled_back=True))
    with pytest.raises(ValueError, match="both terminated and truncated"):
        compute_reward(RewardConfig(), step(terminated=True, truncated=True))
    with pytest.raises(ValueError, match="host_parameters is 0"):
        compute_reward(RewardConfig(), step(host_parameters=0))


@pytest.mark.parametrize("operation", LifecycleOp)
@pytest.mark.parametrize("terminated", [False, True])
def test_no_operation_is_rewarded_as_such(operation: LifecycleOp, terminated: bool) -> None:
    config = RewardConfig()
    waited = compute_reward(config, step(terminated=terminated))
    assert compute_reward(config, step(operation=operation, terminated=terminated)) == waited


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("family", "accuracy"),
        ("mode", "dense"),
        ("rent", -0.1),
        ("rent", math.inf),
        ("gamma", 0.0),
        ("gamma", 1.1),
        ("control_variate", 1),
        ("rollback_penalty", 0.5),
        ("rollback_penalty", math.nan),
    ],
)
def test_a_bad_config_names_field_and_value(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"RewardConfig.{field} is {value!r}; expected"):
        RewardConfig(**{field: value})  # type: ignore[arg-type]


def test_valid_edges() -> None:
    RewardConfig(gamma=1.0, rent=0.0, rollback_penalty=1.0)


@given(configs, standings, standings, ends)
def test_components_sum_to_the_total(
    config: RewardConfig, before: Standing, after: Standing, end: tuple[bool, bool, bool]
) -> None:
    terminated, truncated, rolled_back = end
    inputs = step(
        before=before, after=after, terminated=terminated, truncated=truncated, rolled_back=rolled_back
    )
    components = compute_reward(config, inputs)
    assert tuple(asdict(components)) == COMPONENT_NAMES
    assert sum(asdict(components).values()) == pytest.approx(components.total, abs=1e-12)
    if not terminated:
        assert components.final_score == components.final_rent == components.final_control == 0.0


def test_records_are_slotted_and_frozen() -> None:
    components = compute_reward(RewardConfig(), step())
    assert not hasattr(components, "__dict__")
    assert not hasattr(RewardConfig(), "__dict__")
    with pytest.raises(AttributeError):
        components.rollback = 1.0  # type: ignore[misc]
