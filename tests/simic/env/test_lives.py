"""Where the life counts: rewards add up to the mean utility of all epochs, minus the baseline's."""

from collections.abc import Iterator
from typing import Literal

import numpy as np
import pytest

from esper.leyline import BaselineCurve, LifecycleOp
from esper.leyline.utility import score_by_loss, utility
from esper.simic.env import make_world
from esper.simic.env.accounts import Accounts
from esper.simic.env.episodes import Episodes
from esper.simic.reward import RewardConfig
from esper.tamiyo.controller import RewardRecord
from esper.tamiyo.tracker import Paymaster
from esper.tolaria.tasks import forget, register
from tiny_tasks import tiny_task
from watched import paper_host, report

CASE, SEED, EPOCHS = "tiny_life:change=2", 5, 6
Family = Literal["contribution", "loss"]


@pytest.fixture(autouse=True)
def _tiny(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("ESPER_CACHE", str(tmp_path))
    register(tiny_task("tiny_life", counts="life"))
    yield
    forget("tiny_life")


def begun(**options: object) -> Episodes:
    setting = make_world("tiny_life", 1)
    reward = RewardConfig(counts=setting.counts, rent=0.3, gamma=1.0, **options)  # type: ignore[arg-type]
    episodes = setting.episodes(reward=reward)
    episodes.seed(0, 0)
    episodes.begin(0, case=CASE, host_seed=SEED)
    return episodes


def lived(episodes: Episodes) -> tuple[list[float], list[float], BaselineCurve | None]:
    """What each epoch paid, what each was worth, and the baseline."""
    rng, paid, worth = np.random.default_rng(3), [], []
    baseline, untrained = episodes.episode(0).baseline, episodes.host(0).report.judged[0]
    for _ in range(EPOCHS):
        result = episodes.step(episodes.choices.sample(episodes.masks(), rng))
        host = episodes.host(0)
        loss, accuracy = host.report.judged
        assert accuracy is not None
        score = accuracy if episodes.reward.family == "contribution" else score_by_loss(loss, untrained)
        paid.append(float(result.components.total[0]))
        worth.append(utility(score, 0.3, host.added_parameters, host.host_parameters))
    assert worth[-1] != worth[0]
    return paid, worth, baseline


def baseline_life(curve: BaselineCurve, family: Family) -> float:
    accuracies, losses = curve.accuracies[1 : EPOCHS + 1], curve.losses[: EPOCHS + 1]
    if family == "contribution":
        return float(np.mean([accuracy or 0.0 for accuracy in accuracies]))
    return float(np.mean([score_by_loss(loss, losses[0]) for loss in losses[1:]]))


@pytest.mark.parametrize("family", ["contribution", "loss"])
@pytest.mark.parametrize("mode", ["shaped", "sparse"])
def test_rewards_add_up_to_the_life_over_that_of_the_baseline(family: Family, mode: str) -> None:
    episodes = begun(family=family, mode=mode)
    paid, worth, curve = lived(episodes)
    assert curve is not None
    life = float(np.mean(worth))
    assert sum(paid) == pytest.approx(life - baseline_life(curve, family), abs=1e-9)
    finished = episodes.finished(0, lost=False)
    assert finished.utility == pytest.approx(life, abs=1e-9)
    assert finished.gain == pytest.approx(sum(paid), abs=1e-9)
    if mode == "sparse":
        assert not any(paid[:-1])


def test_an_epoch_pays_its_own_utility_over_the_horizon() -> None:
    paid, worth, _ = lived(begun(control_variate=False))
    assert paid == pytest.approx([each / EPOCHS for each in worth], abs=1e-9)


def test_waiting_gains_nothing_over_the_baseline() -> None:
    episodes = begun()
    paid = [float(episodes.step(np.zeros((1, 8), dtype=np.int64)).components.total[0]) for _ in range(EPOCHS)]
    assert paid == pytest.approx([0.0] * EPOCHS, abs=1e-9)
    assert episodes.finished(0, lost=False).gain == pytest.approx(0.0, abs=1e-9)


def test_a_life_goes_on_where_it_was_saved() -> None:
    whole, cut = begun(), begun()
    rng = np.random.default_rng(8)
    for _ in range(3):
        actions = whole.choices.sample(whole.masks(), rng)
        whole.step(actions), cut.step(actions)
    resumed = begun()
    resumed.load_state_dict(cut.state_dict())
    for _ in range(EPOCHS - 3):
        actions = whole.choices.sample(whole.masks(), rng)
        assert resumed.step(actions).components.total[0] == whole.step(actions).components.total[0]
    assert resumed.finished(0, lost=False) == whole.finished(0, lost=False)


def test_no_loss_of_one_epoch_counts_for_more_than_the_worst() -> None:
    reward = RewardConfig(family="loss", counts="life", rent=0.0, gamma=1.0, control_variate=False)
    accounts, host, none = (
        Accounts(reward, 1, horizon=4, shown_reward=reward),
        paper_host("a"),
        np.array([False]),
    )
    paid = []
    for epoch, loss in enumerate((2.0, 1.0, 100.0, float("nan"))):
        host.report = report(epoch, loss=loss)
        if epoch:
            paid.append(float(accounts.close_epoch({0: host}, none, none).total[0]))
        else:
            accounts.begin(0, host, None)
    assert paid == pytest.approx([-0.5 / 4, -3.0 / 4, -3.0 / 4])


def test_a_condemned_host_loses_its_life() -> None:
    episodes = begun()
    curve = episodes.episode(0).baseline
    assert curve is not None
    expected = -baseline_life(curve, "contribution")
    assert episodes.accounts.gain_of_condemned(0) == pytest.approx(expected, abs=1e-9)


def test_the_actor_is_shown_what_an_epoch_was_worth() -> None:
    record = RewardRecord(
        family="contribution", mode="shaped", rent=0.1, gamma=0.5, control_variate=False, counts="life"
    )
    paymaster = Paymaster(0.1, record)
    assert [paymaster.pay(score, 50, 100, grown=True) for score in (0.5, 0.75)] == pytest.approx([0.45, 0.7])


def test_the_cap_of_an_instance_masks_what_does_not_fit() -> None:
    legal = []
    for cap in (0.0, 0.5):
        episodes = make_world(f"stream:cap={cap},size=500", 1).episodes(
            reward=RewardConfig(control_variate=False)
        )
        episodes.seed(0, 0)
        episodes.begin(0)
        situation = episodes.situation(0)
        assert situation.signals.parameter_budget == int(cap * 1426)
        legal.append([blueprint for slot in situation.legal.values() for blueprint in slot.blueprints])
        masked = episodes.choices.row(np.zeros(8, dtype=np.int64), episodes.masks()[0], 0)
        assert masked[LifecycleOp.GERMINATE] == bool(legal[-1])
    assert legal[0] == []
    assert legal[1].count("mixer") == 2  # not at the first slot, where it has 1,648 parameters


def test_a_suite_says_what_counts() -> None:
    assert make_world("stream", 1).counts == "life"
    assert make_world("shift", 1).counts == "end"
    assert make_world("stream:cap=0.0", 1).episodes().reward.counts == "life"
