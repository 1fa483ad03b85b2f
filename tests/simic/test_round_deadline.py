"""A round closes at its deadline with what has come in; late hosts are lost, all others go on in the next round."""

import time
from collections.abc import Sequence
from dataclasses import replace

import pytest

from esper.leyline import EpisodeFinished, HostsLost, HostStep, RoundFinished
from esper.simic.building import build
from esper.simic.config.checks import ConfigError
from esper.simic.config.training_config import TrainingConfig
from esper.simic.trainer import VectorizedPPOTrainer
from esper.tolaria.worlds.toy.host import ToyWorld
from listener import Listener

pytestmark = pytest.mark.filterwarnings("ignore:advantage std:RuntimeWarning")
CONFIG = TrainingConfig(
    suite="toy", num_envs=3, num_minibatches=1, rounds=2, hidden_size=16, eval_every=0, run_telemetry="debug"
)
DEADLINE = 3600.0


class SlowOnce(ToyWorld):
    """The step of this number takes the last of its hosts until the deadline, and the others no time."""

    slow_step, steps = 5, 0
    hosts: tuple[int, ...] = (2,)

    def wait_until(self, moment: float | None) -> None:
        self.moment = moment

    def step_many(self, steps: Sequence[HostStep]) -> None:
        super().step_many(steps)
        self.steps += 1
        if self.steps == self.slow_step:
            assert self.moment is not None
            Clock.now = self.moment
            raise HostsLost(self.hosts, "late")


class Clock:
    """What the trainer reads the time from; it stands still."""

    now = 0.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> type[Clock]:
    monkeypatch.setattr(Clock, "now", 100.0)
    monkeypatch.setattr(time, "monotonic", lambda: Clock.now)
    return Clock


def train(hosts: tuple[int, ...] = (2,), slow_step: int = 5, deadline: float | None = DEADLINE) -> Listener:
    """Two rounds of 20 steps, of which one is slow."""
    training = build(CONFIG)
    world = training.envs.episodes.world = SlowOnce(3)
    world.hosts, world.slow_step = hosts, slow_step
    config, listener = replace(CONFIG, cluster="local", cluster_round_deadline=deadline), Listener()
    trainer = VectorizedPPOTrainer(config, training, sink=listener)
    trainer.begin()
    trainer.train()
    return listener


def test_the_round_closes_with_the_steps_that_came_in(clock: type[Clock]) -> None:
    del clock
    listener = train()
    first, second = (event for event in listener.events if isinstance(event, RoundFinished))
    assert (first.env_steps, first.episodes, first.lost_episodes) == (3 * 5, 0, 1)
    assert sum(first.operations.values()) == 3 * 5 - 1  # the late host executed nothing
    assert (second.env_steps, second.lost_episodes) == (3 * 25, 0)
    ended = [event for event in listener.events if isinstance(event, EpisodeFinished) and not event.lost]
    assert {(event.round, event.env, event.epochs) for event in ended} == {(2, 0, 20), (2, 1, 20), (2, 2, 20)}


def test_without_late_hosts_the_deadline_changes_nothing(clock: type[Clock]) -> None:
    del clock
    with_deadline, without = train(slow_step=99), train(slow_step=99, deadline=None)

    def learned(listener: Listener) -> list[tuple[object, ...]]:
        rounds = [event for event in listener.events if isinstance(event, RoundFinished)]
        return [(row.env_steps, row.mean_return, row.policy_loss, row.grad_norm) for row in rounds]

    assert learned(with_deadline) == learned(without)
    assert [row[0] for row in learned(without)] == [60, 120]


def test_a_deadline_that_no_host_can_keep_is_an_error(clock: type[Clock]) -> None:
    del clock
    with pytest.raises(ConfigError, match="cluster_round_deadline is 3600, and no host made a step within"):
        train(hosts=(0, 1, 2), slow_step=1)
