"""Playing given cases: what a player is given, and what it must have forgotten."""

import numpy as np
import pytest
import torch

from esper.simic.env import make_world
from esper.simic.env.episodes import Episodes, StepResult
from esper.simic.env.spaces import Actions
from esper.simic.evaluation import LearnedPlayer, Rewards, play_cases
from esper.tamiyo import Actor, GrowthPolicy

WANTED = [(f"toy:draw={draw}", 0) for draw in range(5)]


class Watched(LearnedPlayer):
    """A network whose memory is noted before and after each decision."""

    def __init__(self, policy: GrowthPolicy) -> None:
        super().__init__(lambda num_envs: Actor(policy, num_envs))
        self.before: list[dict[str, torch.Tensor]] = []
        self.after: list[dict[str, torch.Tensor]] = []

    def act(self, episodes: Episodes, rewards: Rewards) -> Actions:
        self.before.append(self._actor.state_dict())
        actions = super().act(episodes, rewards)
        self.after.append(self._actor.state_dict())
        return actions


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> tuple[Watched, list[list[float]], int]:
    """A network on five cases in two envs; what was shown of its rewards, and the steps of an episode."""
    episodes = make_world("toy", 2).episodes(on_illegal="noop")
    shown: list[list[float]] = []
    step = Episodes.step

    def spy(self: Episodes, actions: Actions) -> StepResult:
        result = step(self, actions)
        shown.append(result.shown_rewards.tolist())
        return result

    monkeypatch.setattr(Episodes, "step", spy)
    policy = GrowthPolicy(episodes.space, hidden_size=8, generator=torch.Generator().manual_seed(0))
    player = Watched(policy)
    assert [episode.case for episode in play_cases(player, episodes, WANTED)] == [case for case, _ in WANTED]
    return player, shown, episodes.horizon


def test_a_player_is_shown_the_reward_of_its_last_step(
    played: tuple[Watched, list[list[float]], int],
) -> None:
    player, shown, horizon = played
    for number, state in enumerate(player.after):
        expected = [0.0, 0.0] if number % horizon == 0 else shown[number - 1]
        assert state["previous_reward"].tolist() == pytest.approx(expected)
    assert np.count_nonzero(shown) > horizon


def test_a_network_begins_every_episode_without_memory(
    played: tuple[Watched, list[list[float]], int],
) -> None:
    player, _, horizon = played
    assert len(player.before) == 3 * horizon
    for number, state in enumerate(player.before):
        begins = number % horizon == 0
        assert bool((state["hidden"] == 0).all()) == begins
        assert bool((state["previous_action"] == -1).all()) == begins
