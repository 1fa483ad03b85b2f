"""Looking again after each drop: what is fitted, when it looks, and that it gives back."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from bench_rows import ROW
from esper.benchmark import RowsError
from esper.benchmark.outcomes import WAITING, Outcome, Outcomes, grown
from esper.benchmark.rivals import Look, look_features
from esper.benchmark.stream_rules import (
    ForesightPolicy,
    LinearWish,
    LookAgain,
    LookAgainPolicy,
    LookAlwaysPolicy,
    MixerPolicy,
    fit_look_again,
    fit_wish,
    foresight,
    signs,
)
from esper.leyline import HostSignals, LifecycleOp, Situation
from esper.simic.env.making import make_world
from esper.simic.evaluation import RulePlayer
from esper.simic.offline.recorder import record_episodes
from esper.simic.reward import RewardConfig
from esper.tamiyo.tracker import JumpDetector
from esper.tolaria.tasks import forget, register
from make_outcomes import outcome_of
from tiny_tasks import tiny_task

SEED = grown("mixer", 1, 0)
EPOCHS = 30


def lives(*, curves: bool = True) -> tuple[Outcomes, dict[str, list[tuple[int, int]]]]:
    """Streams of three phases with many or few samples: a seed is worth 0.1 where they are many, else it costs it."""
    rng, rows, samples = np.random.default_rng(5), list[Outcome](), {}
    for number in range(12):
        case, starts = f"case{number}", [0, int(rng.integers(8, 12)), int(rng.integers(18, 22))]
        sizes = [
            int(rng.integers(2500, 4000)) if rng.random() < 0.5 else int(rng.integers(500, 800))
            for _ in starts
        ]
        samples[case] = list(zip(starts, sizes, strict=True))
        waited = 0.6 + 0.01 * rng.standard_normal(EPOCHS + 1)
        waited[[start + 1 for start in starts]] = 0.2  # the epoch that shows a change, and the first of all
        pays = np.repeat([1.0 if size > 1500 else -1.0 for size in sizes], np.diff([*starts, EPOCHS]))
        for schedule, curve in ((WAITING, waited), (SEED, waited + 0.1 * np.array([0.0, *pays]))):
            row = replace(
                ROW,
                instance=case,
                utility=float(curve[1:].mean()),
                life_added=0.0 if schedule == WAITING else 713.0,
                validation_accuracies=tuple(map(float, curve)),
                train_accuracies=(None, *(0.5 + 0.05 * rng.standard_normal(EPOCHS))),
            )
            rows.append(outcome_of(row, held_out=False, schedule=schedule))
    if not curves:
        rows = [row if row.schedule == WAITING else replace(row, validation_accuracies=()) for row in rows]
    return Outcomes(rows), samples


def test_a_fit_finds_what_tells_where_growth_pays() -> None:
    again = fit_look_again(*lives())
    assert again.look.schedule == SEED
    assert again.look.expected(look_features(3000, (0.6, 0.6), 0.5)) > 0.1
    assert again.look.expected(look_features(600, (0.6, 0.6), 0.5)) < -0.1
    assert str(again).startswith("mixer@1 by rule ")
    assert str(again).endswith(f", {again.look.epoch} epochs after a jump of {again.drop:g}")


def test_an_outcome_of_a_life_has_its_means() -> None:
    row = replace(ROW, utility=0.5, life_added=71.3, added_parameters=0, validation_accuracy=0.9)
    outcome = outcome_of(row, held_out=False, schedule=SEED)
    assert outcome.added_parameters == 71
    assert outcome.utility == pytest.approx(0.5, abs=1e-5)
    assert outcome.validation_accuracies == row.validation_accuracies


def test_outcomes_without_curves_are_refused() -> None:
    with pytest.raises(
        RowsError, match=r"look_again needs the curves of schedules, and 'germinate mixer@1 t=0"
    ):
        fit_look_again(*lives(curves=False))
    outcomes, samples = lives()
    late = [replace(row, schedule=row.schedule.replace("t=0", "t=4")) for row in outcomes.rows]
    with pytest.raises(RowsError, match="needs the outcomes of a schedule that begins at t=0"):
        fit_look_again(Outcomes(late), samples)


def test_a_rise_is_noticed_as_a_drop_is() -> None:
    detector = JumpDetector(0.2)
    seen = [detector.noticed(accuracy) for accuracy in (0.3, 0.6, 0.7, 0.4, 0.5, None, 0.9, 0.95)]
    assert seen == [False, True, False, True, False, False, False, False]  # None has no epoch after it
    assert JumpDetector(0.2, best=0.5, last=0.5).noticed(0.75)


@pytest.fixture
def stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """61 samples; from epoch 4 on 67 of other classes. In two steps an epoch no rise is a jump."""
    monkeypatch.setenv("ESPER_CACHE", str(tmp_path))
    register(tiny_task("tiny_again", epochs=11, counts="life", steps_per_epoch=2))
    yield "tiny_again:change=4"
    forget("tiny_again")


@pytest.mark.parametrize("many_pay", [True, False])
def test_it_looks_after_the_beginning_and_after_the_drop(stream: str, many_pay: bool) -> None:
    sign = 1.0 if many_pay else -1.0
    look = Look(2, SEED, (6.0, 0.0, 0.0, 0.0), (1.0,) * 4, (0.0, sign, 0.0, 0.0, 0.0))  # 64 samples
    player = RulePlayer(lambda _: LookAgainPolicy(LookAgain(look, drop=0.4)))
    setting = make_world(stream, 1)
    reward = RewardConfig(rent=setting.rent, counts=setting.counts, control_variate=False)
    episodes = setting.episodes(reward=reward)
    episodes.seed(0, 0)
    episodes.begin(0, case=stream, host_seed=0)
    player.begin(1)
    done, curve = [], [episodes.host(0).report.validation_accuracy or 0.0]
    for _ in range(10):
        (policy,) = player._rules
        assert isinstance(policy, LookAgainPolicy)
        again = LookAgainPolicy(policy.again)  # it may be stopped and gone on with at any time
        again.load_state_dict(json.loads(json.dumps(policy.state_dict())))
        player._rules = [again]
        actions = player.act(episodes, np.zeros(1))
        episodes.step(actions)
        done.append(LifecycleOp(int(actions[0, 0])))
        curve.append(episodes.host(0).report.validation_accuracy or 0.0)
    assert curve[4] - curve[5] > 0.4  # the drop is seen after epoch 5 was trained, the first of the new data
    if many_pay:
        assert [(epoch, op) for epoch, op in enumerate(done) if op] == [
            (7, LifecycleOp.GERMINATE),
            (8, LifecycleOp.ADVANCE),
        ]
    else:
        assert [(epoch, op) for epoch, op in enumerate(done) if op] == [
            (2, LifecycleOp.GERMINATE),
            (3, LifecycleOp.ADVANCE),
            (7, LifecycleOp.PRUNE),
        ]


# A teacher that knows the plan of a stream, and a linear rule that it teaches.


CASE = "stream:plan=shuffle@3/alarm@5/labels@6/shuffle0@8,cap=1.0"


def at(epoch: int) -> Situation:
    return cast(Situation, SimpleNamespace(signals=SimpleNamespace(epoch=epoch)))


def test_a_mixer_is_wanted_once_shuffled_data_were_trained_on() -> None:
    teacher = ForesightPolicy(CASE)
    # the data of epoch 3 are the first shuffled ones: after four epochs that can be known, and not before
    assert [teacher.wants(at(epoch)) for epoch in range(11)] == [False] * 4 + [True] * 5 + [False] * 2


def test_the_teacher_grows_and_gives_back_with_the_data() -> None:
    setting = make_world("stream", 1, horizon=11)
    reward = RewardConfig(rent=setting.rent, counts=setting.counts, control_variate=False)
    episodes = setting.episodes(reward=reward)
    recording, _ = record_episodes(foresight([CASE]), episodes, [(CASE, 0)], policy="foresight")
    done = recording.action[:, 0].tolist()
    wait, grow, on = LifecycleOp.WAIT, LifecycleOp.GERMINATE, LifecycleOp.ADVANCE
    assert done == [wait, wait, wait, wait, grow, on, wait, wait, wait, LifecycleOp.PRUNE, wait]


def test_what_is_no_mixer_is_given_back_even_where_one_is_wanted() -> None:
    slots = [SimpleNamespace(name=name, blueprint=None) for name in ("a", "b", "c")]
    slots[1].blueprint = "conv_small"
    legal = {
        slot.name: SimpleNamespace(operations=frozenset(), blueprints=(), styles=(), alpha_targets=())
        for slot in slots
    }
    legal["b"].operations = frozenset({LifecycleOp.ADVANCE, LifecycleOp.PRUNE})
    situation = SimpleNamespace(signals=SimpleNamespace(epoch=5), slots=slots, legal=legal)
    said = ForesightPolicy(CASE).act(cast(Situation, situation))
    assert (said.op, said.slot) == (LifecycleOp.PRUNE, "b")
    slots[1].blueprint = "mixer"
    assert ForesightPolicy(CASE).act(cast(Situation, situation)).op is LifecycleOp.ADVANCE


def test_a_rule_is_fitted_to_what_the_teacher_wants() -> None:
    rng = np.random.default_rng(3)
    seen = rng.standard_normal((500, 3)) * [1.0, 5.0, 0.1] + [0.0, 2.0, 1.0]
    wish = fit_wish(seen, seen[:, 1] > 2.0)
    agreed = np.mean([wish.wants(row) == (row[1] > 2.0) for row in seen])
    assert agreed > 0.97
    spread = np.array([1.0, 5.0, 0.1]) * wish.weights
    assert abs(spread[1]) > 10 * max(abs(spread[0]), abs(spread[2]))


def test_a_rule_says_what_its_weights_say() -> None:
    wish = LinearWish(-1.0, (0.5, 0.25))
    assert wish.wants((3.0, 0.0))  # -1 + 1.5
    assert not wish.wants((1.0, 1.0))  # -1 + 0.75
    assert str(wish) != str(LinearWish(-1.0, (0.5, 0.2)))


def signals(epoch: int, validation: float, train: float) -> HostSignals:
    return HostSignals(
        epoch=epoch,
        horizon=20,
        training_samples=1024,
        train_loss=0.9,
        train_accuracy=train,
        validation_loss=1.2,
        validation_accuracy=validation,
        plateau_epochs=0,
        gradient_norm=np.e,
        host_parameters=100,
        added_parameters=0,
        parameter_budget=None,
        last_operation=LifecycleOp.WAIT,
    )


def test_what_a_rule_goes_by() -> None:
    numbers = (10.0, 0.6, 0.1, 0.2, 0.05, 1.2, 0.3, 1.0)
    assert signs(signals(5, 0.6, 0.5), 0.4, 0.45, grown=False) == pytest.approx((*numbers, 0.0, *[0.0] * 8))
    assert signs(signals(5, 0.6, 0.5), 0.4, 0.45, grown=True) == pytest.approx((*numbers, 1.0, *numbers))


def test_what_was_not_measured_is_not_taken_for_a_number() -> None:
    known = signals(5, 0.6, 0.5)
    for unknown in (
        replace(known, validation_loss=None),
        replace(known, train_loss=None),
        replace(known, gradient_norm=None),
        replace(known, training_samples=None),
    ):
        assert signs(unknown, 0.4, 0.45, grown=False) is None
    assert signs(known, None, 0.45, grown=False) is None


def test_looking_always_compares_with_the_epoch_before_and_begins_anew() -> None:
    policy = LookAlwaysPolicy(LinearWish(0.0, (0.0,) * 17))
    assert isinstance(policy, MixerPolicy)

    def look(epoch: int, validation: float) -> None:
        policy.wants(cast(Situation, SimpleNamespace(signals=signals(epoch, validation, 0.5), slots=())))

    look(1, 0.3)
    assert policy.seen is None  # there is no epoch before
    look(2, 0.5)
    assert policy.seen is not None
    assert policy.seen[3] == pytest.approx(0.2)
    policy.reset()
    look(2, 0.5)
    assert policy.seen is None
