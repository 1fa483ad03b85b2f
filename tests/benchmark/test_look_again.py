"""Looking again after each drop: what is fitted, when it looks, and that it gives back."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench_rows import ROW
from esper.benchmark import RowsError
from esper.benchmark.outcomes import WAITING, Outcome, Outcomes, grown
from esper.benchmark.rivals import Look, look_features
from esper.benchmark.stream_rules import LookAgain, LookAgainPolicy, fit_look_again
from esper.leyline import LifecycleOp
from esper.simic.env.making import make_world
from esper.simic.evaluation import RulePlayer
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
    """61 samples; from epoch 4 on 67 of other classes."""
    monkeypatch.setenv("ESPER_CACHE", str(tmp_path))
    register(tiny_task("tiny_again", epochs=11, counts="life"))
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
