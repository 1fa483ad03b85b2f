"""The governor's rules, each at its edge."""

import math
from dataclasses import replace

import pytest

from esper.kasmina.governor import Governor, GovernorRules, Verdict, Vitals

WELL = Vitals(
    train_loss=0.5, gradient_norm=1.0, validation_loss=0.6, validation_accuracy=0.8, seeds_finite=True
)


def _governor(best: float = 0.0) -> Governor:
    return Governor(GovernorRules(), chance_accuracy=0.2, untrained_loss=1.5, best_accuracy=best)


def test_a_host_that_is_well_goes_on_and_is_worth_remembering() -> None:
    governor = _governor()
    assert governor.judge(WELL) is None
    assert governor.content
    assert governor.best_accuracy == 0.8
    assert governor.rollbacks == 0


@pytest.mark.parametrize("field", ["train_loss", "gradient_norm", "validation_loss"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_noticed_at_once(field: str, value: float) -> None:
    governor = _governor()
    assert governor.judge(replace(WELL, **{field: value})) is Verdict.NOT_FINITE  # type: ignore[arg-type]
    assert (governor.rollbacks, governor.consecutive, governor.content) == (1, 1, False)


def test_a_broken_seed_is_noticed_at_once() -> None:
    assert _governor().judge(replace(WELL, seeds_finite=False)) is Verdict.SEED_NOT_FINITE


def test_divergence_is_over_three_times_the_loss_of_a_guess() -> None:
    assert _governor().judge(replace(WELL, train_loss=4.5)) is None
    assert _governor().judge(replace(WELL, train_loss=math.nextafter(4.5, 5.0))) is Verdict.DIVERGED


def test_a_host_that_begins_beyond_that_is_judged_by_its_own_beginning() -> None:
    governor = _governor()
    governor.begin_at(4.5)  # not beyond: a host that begins like others is judged like them
    assert governor.judge(replace(WELL, train_loss=5.0)) is Verdict.DIVERGED
    governor.begin_at(6.0)
    assert governor.judge(replace(WELL, train_loss=18.0)) is None
    assert governor.judge(replace(WELL, train_loss=18.1)) is Verdict.DIVERGED


def test_a_loss_on_data_that_have_just_changed_is_no_divergence() -> None:
    governor = _governor()
    assert governor.judge(replace(WELL, train_loss=20.0), on_new_data=True) is None
    assert governor.judge(replace(WELL, train_loss=math.nan), on_new_data=True) is Verdict.NOT_FINITE
    assert governor.judge(replace(WELL, train_loss=20.0)) is Verdict.DIVERGED


def test_overfitting_is_no_divergence() -> None:
    assert _governor().judge(replace(WELL, validation_loss=50.0)) is None


def test_collapse_needs_two_epochs_at_chance() -> None:
    governor = _governor(best=0.8)  # 0.6 above chance: a tenth of it is 0.06
    fallen = replace(WELL, validation_accuracy=0.26)
    assert governor.judge(fallen) is None
    assert not governor.content  # not an epoch to go back to
    assert governor.judge(fallen) is Verdict.COLLAPSED


def test_after_a_collapse_the_count_begins_again() -> None:
    governor = _governor(best=0.8)
    fallen = replace(WELL, validation_accuracy=0.2)
    verdicts = [governor.judge(fallen) for _ in range(4)]
    assert verdicts == [None, Verdict.COLLAPSED, None, Verdict.COLLAPSED]


def test_what_is_left_may_be_nothing_at_all() -> None:
    governor = Governor(
        GovernorRules(collapse_share=0.0, collapse_patience=1), 0.25, untrained_loss=1.5, best_accuracy=0.75
    )
    assert governor.judge(replace(WELL, validation_accuracy=0.375)) is None
    assert governor.judge(replace(WELL, validation_accuracy=0.25)) is Verdict.COLLAPSED


def test_just_above_chance_is_no_collapse() -> None:
    governor = _governor(best=0.8)
    fallen = replace(WELL, validation_accuracy=0.27)
    assert [governor.judge(fallen) for _ in range(4)] == [None] * 4


def test_an_epoch_in_between_begins_the_count_again() -> None:
    governor = _governor(best=0.8)
    fallen = replace(WELL, validation_accuracy=0.2)
    assert [governor.judge(vitals) for vitals in (fallen, WELL, fallen)] == [None] * 3


def test_a_host_that_never_learned_cannot_collapse() -> None:
    untaught = replace(WELL, validation_accuracy=0.2)
    learned, not_yet = _governor(best=0.29), _governor(best=0.27)  # a tenth of the way from 0.2 to 1 is 0.28
    assert [not_yet.judge(untaught) for _ in range(4)] == [None] * 4
    assert [learned.judge(untaught) for _ in range(2)] == [None, Verdict.COLLAPSED]


@pytest.mark.parametrize("unknown", [False, True])
def test_one_good_epoch_was_learned_and_what_is_unknown_is_not_held_against_a_host(unknown: bool) -> None:
    governor, fallen = _governor(), replace(WELL, validation_accuracy=0.2)
    blank = [replace(WELL, validation_accuracy=None)] * unknown
    assert [governor.judge(vitals) for vitals in (*blank, WELL, *blank, fallen)][-1] is None
    assert governor.judge(fallen) is Verdict.COLLAPSED


def test_what_one_epoch_showed_alone_after_a_change_was_not_learned() -> None:
    """Data changed, their first epoch had something of the old ones left, and the head begins anew."""
    governor, fallen = _governor(best=0.8), replace(WELL, validation_accuracy=0.2)
    governor.forget_best()
    once = [replace(WELL, validation_accuracy=0.4), fallen, fallen, fallen]
    assert [governor.judge(vitals) for vitals in once] == [None] * 4
    twice = [replace(WELL, validation_accuracy=0.4)] * 2 + [fallen, fallen]
    assert [governor.judge(vitals) for vitals in twice] == [None, None, None, Verdict.COLLAPSED]


@pytest.mark.parametrize("broken", [{"train_loss": math.nan}, {"train_loss": 9.0}, {"seeds_finite": False}])
def test_the_best_is_that_of_good_epochs(broken: dict[str, float]) -> None:
    """A condemned epoch is undone: its accuracy is no measure of what the host had learned."""
    governor = _governor(best=0.27)
    assert governor.judge(replace(WELL, validation_accuracy=0.9, **broken)) is not None  # type: ignore[arg-type]
    assert governor.best_accuracy == 0.27
    assert [governor.judge(replace(WELL, validation_accuracy=0.2)) for _ in range(4)] == [None] * 4


def test_new_data_forgive_what_was_lost_of_the_old() -> None:
    governor = _governor(best=0.8)
    fallen = replace(WELL, validation_accuracy=0.2)
    governor.judge(fallen)
    governor.forget_best()
    assert [governor.judge(fallen) for _ in range(3)] == [None] * 3


def test_it_gives_up_after_three_in_a_row_and_a_good_epoch_begins_again() -> None:
    governor, broken = _governor(), replace(WELL, train_loss=math.nan)
    for vitals, gives_up in (
        (broken, False),
        (broken, False),
        (WELL, False),
        (broken, False),
        (broken, False),
    ):
        governor.judge(vitals)
        assert governor.gives_up is gives_up
    governor.judge(broken)
    assert governor.gives_up
    assert governor.rollbacks == 5


def test_its_memory_can_be_saved() -> None:
    governor, twin = _governor(best=0.8), _governor()
    governor.judge(replace(WELL, train_loss=math.nan))
    governor.judge(WELL)
    governor.judge(replace(WELL, validation_accuracy=0.2))
    assert all(governor.state_dict()[name] for name in ("epochs_at_chance", "rollbacks", "last_accuracy"))
    twin.load_state_dict(governor.state_dict())
    assert twin == governor
    earlier = {name: value for name, value in governor.state_dict().items() if name != "last_accuracy"}
    twin.load_state_dict(earlier)
    assert (twin.best_accuracy, twin.last_accuracy) == (0.8, math.inf)


@pytest.mark.parametrize(
    ("field", "value", "bound"),
    [
        ("divergence_factor", 1.0, "> 1"),
        ("collapse_patience", 0, ">= 1"),
        ("learned_margin", -0.1, ">= 0"),
        ("max_consecutive", 0, ">= 1"),
        ("collapse_share", math.nan, ">= 0"),
    ],
)
def test_rules_that_make_no_sense_are_refused(field: str, value: float, bound: str) -> None:
    with pytest.raises(ValueError, match=rf"GovernorRules.{field} must be {bound}, not"):
        GovernorRules(**{field: value})  # type: ignore[arg-type]
