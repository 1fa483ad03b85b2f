"""Which half of validation the engine shows the actor, and which one it reports and pays by."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from esper.leyline import EpisodeFinished
from esper.leyline.utility import Family
from esper.simic.env import make_world
from esper.simic.reward import RewardConfig
from esper.tolaria.engine.host import TrainedHost
from esper.tolaria.tasks import forget, register
from tiny_tasks import advance, germinate, tiny_task

EPOCHS = 6


@pytest.fixture(autouse=True)
def _tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("ESPER_CACHE", str(tmp_path))
    register(tiny_task())
    yield
    forget("tiny")


def _life(
    family: Family, *, scrambled: bool
) -> tuple[list[float], list[float], EpisodeFinished, TrainedHost]:
    """(shown rewards, rewards) of an episode that grows, its end, and its host; `scrambled`: wrong judged targets."""
    episodes = make_world("tiny", 1).episodes(reward=RewardConfig(family=family))
    episodes.seed(0, 0)
    episodes.begin(0, case="tiny", host_seed=7)
    host = episodes.host(0)
    assert isinstance(host, TrainedHost)
    if scrambled:
        judged = host.data.validations[0].targets[host.observed_samples :]
        judged[:] = judged.roll(1)
    shown, paid = list[float](), list[float]()
    for epoch in range(EPOCHS):
        action = {0: germinate(0), 1: advance(0)}.get(epoch)
        encoded = np.zeros(8, dtype=np.int64) if action is None else episodes.encode(0, action)
        result = episodes.step(encoded[None])
        shown.append(float(result.shown_rewards[0]))
        paid.append(float(result.components.total[0]))
    return shown, paid, result.finished[0], host


@pytest.mark.parametrize("family", ["contribution", "loss"])
def test_no_reward_that_is_shown_depends_on_the_judged_half(family: Family) -> None:
    """A controller in use has the half that it observes, and no other."""
    shown, paid, _, _ = _life(family, scrambled=False)
    same, other, _, _ = _life(family, scrambled=True)
    assert same == shown
    assert sum(map(bool, shown)) >= 3
    assert paid != other


def test_a_finished_episode_reports_both_halves() -> None:
    """Its accuracy, utility and gain are judged; `observed_accuracy` is what it was decided and settled by."""
    _, _, end, host = _life("contribution", scrambled=True)
    assert end.observed_accuracy == host.report.validation_accuracy
    assert end.validation_accuracy == host.report.judged_accuracy
    assert end.validation_accuracy is not None
    assert end.observed_accuracy != end.validation_accuracy
    assert end.utility == pytest.approx(
        end.validation_accuracy - 0.01 * host.added_parameters / host.host_parameters
    )
