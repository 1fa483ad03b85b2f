"""SPEC E3: rewards are pure functions from `RewardInputs` to named components whose sum is the reward."""

import math
from dataclasses import replace

import pytest
from hypothesis import given

from esper.leyline.utility import score_by_loss
from esper.simic.reward import RewardConfig, compute_rewards
from reward_strategies import Standing, Step, batch, components, configs, ends, reward, standings

BEFORE = Standing(accuracy=0.5, loss=1.0, added_parameters=20, baseline_accuracy=0.4, baseline_loss=1.2)
AFTER = Standing(accuracy=0.7, loss=0.8, added_parameters=50, baseline_accuracy=0.45, baseline_loss=1.1)
STEP = Step(BEFORE, AFTER, host_parameters=100, largest_growth=60, untrained_loss=2.0)
LAST = STEP._replace(terminated=True)


def accuracy_only(**options: object) -> RewardConfig:
    return RewardConfig(rent=0.1, gamma=0.5, control_variate=False, **options)  # type: ignore[arg-type]


# Known answers, family contribution: U(before) = 0.5 - 0.1 * 0.2 = 0.48, U(after) = 0.7 - 0.1 * 0.5 = 0.65


def test_sparse_pays_the_utility_at_the_end_only() -> None:
    config = accuracy_only(mode="sparse")
    assert reward(config, STEP) == 0.0
    assert reward(config, LAST) == pytest.approx(0.65)


def test_shaped_pays_the_discounted_rise_of_utility() -> None:
    assert reward(accuracy_only(), STEP) == pytest.approx(0.5 * 0.65 - 0.48)


def test_the_potential_is_zero_at_the_end_and_stays_at_truncation() -> None:
    """A step that is cut off is any step that does not terminate."""
    assert components(accuracy_only(), LAST)["potential_after"] == 0.0
    assert reward(accuracy_only(), LAST) == pytest.approx(0.65 - 0.48)
    assert components(accuracy_only(), STEP)["final_score"] == 0.0


def test_the_baseline_is_subtracted_from_every_utility() -> None:
    config = replace(accuracy_only(), control_variate=True)
    before, after = 0.48 - 0.4, 0.65 - 0.45
    assert reward(config, STEP) == pytest.approx(0.5 * after - before)
    assert reward(config, LAST) == pytest.approx(after - before)


def test_an_end_by_the_governor_pays_the_worst_product_and_a_penalty() -> None:
    """Rent of the largest growth: 0.1 x 60 / 100."""
    condemned = AFTER._replace(accuracy=math.nan, loss=math.nan)
    lost = LAST._replace(after=condemned, rolled_back=True)
    assert reward(accuracy_only(), lost) == pytest.approx(-0.06 - 1.0 - 0.48)
    config = RewardConfig(rent=0.1, rollback_penalty=3.0)
    assert reward(config, lost) == pytest.approx(-0.06 - 0.45 - 3.0 - (0.48 - 0.4))


def test_the_loss_family_scales_by_the_untrained_loss() -> None:
    config = accuracy_only(family="loss")
    before, after = -1.0 / 2.0 - 0.02, -0.8 / 2.0 - 0.05
    assert reward(config, STEP) == pytest.approx(0.5 * after - before)
    assert reward(config, LAST) == pytest.approx(after - before)
    against = replace(config, control_variate=True)
    assert reward(against, LAST) == pytest.approx((after + 1.1 / 2.0) - (before + 1.2 / 2.0))
    # A loss of three times the untrained one is the worst that counts, and what a lost host is given.
    awful = LAST._replace(after=AFTER._replace(loss=99.0))
    assert reward(config, awful) == pytest.approx(-3.0 - 0.05 - before)
    # So is one that is no number on the judged half alone, which no governor sees.
    unseen = LAST._replace(after=AFTER._replace(loss=math.nan))
    assert reward(config, unseen) == pytest.approx(-3.0 - 0.05 - before)
    assert [score_by_loss(loss, 2.0) for loss in (0.8, 99.0, math.inf, math.nan)] == [-0.4, -3.0, -3.0, -3.0]
    assert reward(config, LAST._replace(rolled_back=True)) == pytest.approx(-3.0 - 0.06 - 3.0 - before)


def test_no_accuracy_is_needed_for_the_loss_family() -> None:
    blind = STEP._replace(
        before=BEFORE._replace(accuracy=None, baseline_accuracy=None),
        after=AFTER._replace(accuracy=None, baseline_accuracy=None),
    )
    assert math.isfinite(reward(RewardConfig(family="loss"), blind))
    with pytest.raises(ValueError, match="accuracy is unknown: family 'contribution' needs it"):
        reward(RewardConfig(), blind)


def test_what_is_unknown_is_never_taken_for_zero() -> None:
    alone = STEP._replace(after=AFTER._replace(baseline_accuracy=None))
    with pytest.raises(ValueError, match=r"baseline_accuracy is unknown: .*set control_variate=False"):
        reward(RewardConfig(), alone)
    with pytest.raises(ValueError, match="accuracy is unknown"):
        reward(RewardConfig(), STEP._replace(after=AFTER._replace(accuracy=math.nan)))
    with pytest.raises(ValueError, match="accuracy is inf, and only a rollback may end in such numbers"):
        reward(RewardConfig(), STEP._replace(after=AFTER._replace(accuracy=math.inf)))
    with pytest.raises(ValueError, match=r"untrained_loss is 0.0"):
        reward(RewardConfig(family="loss"), STEP._replace(untrained_loss=0.0))


def test_impossible_ends_are_refused() -> None:
    with pytest.raises(ValueError, match="rolled_back without terminated"):
        reward(RewardConfig(), STEP._replace(rolled_back=True))
    with pytest.raises(ValueError, match="host_parameters is 0"):
        reward(RewardConfig(), STEP._replace(host_parameters=0))


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
    with pytest.raises(ValueError, match=rf"^{field} is {value!r}; expected"):
        RewardConfig(**{field: value})  # type: ignore[arg-type]


def test_valid_edges() -> None:
    RewardConfig(gamma=1.0, rent=0.0, rollback_penalty=1.0)


@given(configs, standings, standings, ends)
def test_components_sum_to_the_total(
    config: RewardConfig, before: Standing, after: Standing, end: tuple[bool, bool]
) -> None:
    step = Step(before, after, *end)
    parts = components(config, step)
    assert sum(parts.values()) == pytest.approx(reward(config, step), abs=1e-12)
    if not step.terminated:
        assert parts["final_score"] == parts["final_rent"] == parts["final_control"] == 0.0


def test_records_are_slotted_and_frozen() -> None:
    paid = compute_rewards(RewardConfig(), batch(STEP))
    assert not hasattr(paid, "__dict__")
    assert not hasattr(RewardConfig(), "__dict__")
    with pytest.raises(AttributeError):
        paid.values = paid.values  # type: ignore[misc]
