"""Playing given cases: what a player is given, and what it must have forgotten."""

import numpy as np
import pytest
import torch

from esper.leyline.utility import Family
from esper.simic import held_out
from esper.simic import trainer as loop
from esper.simic.building import build, evaluation_episodes
from esper.simic.config.training_config import TrainingConfig
from esper.simic.env import make_world
from esper.simic.env.episodes import Episodes, StepResult
from esper.simic.evaluation import LearnedPlayer, Rewards, RulePlayer, play_cases
from esper.tamiyo import Actor, GrowthPolicy
from esper.tamiyo.actions import Actions
from esper.tamiyo.rules import rule_policy
from esper.tolaria.worlds.toy.host import ToyBaselines
from growth_envs import harmful

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


@pytest.mark.parametrize(("family", "worst"), [("contribution", 0.0), ("loss", -3.0)])
def test_a_crash_counts_as_the_worst_score_in_selection_and_on_what_is_held_out(
    family: Family, worst: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of two policies that play the same: it crashes on the first case, the other on none."""
    case, blueprint = harmful()
    wanted = [(case, 3), (case, 4)]
    config = TrainingConfig(suite="toy", num_envs=2, num_minibatches=1, reward_family=family)
    training = build(config)
    horizon = training.envs.episodes.horizon
    curves = ToyBaselines(horizon).curves(wanted)
    if family == "contribution":
        waited = [curve.accuracies[horizon] or 0.0 for curve in curves]
    else:
        waited = [-curve.losses[horizon] / curve.losses[0] for curve in curves]
    crashing = f"germinate {blueprint}@0 t=0; advance 0 t=1"

    def player(*_: object) -> RulePlayer:
        return RulePlayer(
            lambda env_idx: rule_policy("wait") if env_idx else rule_policy("schedule", schedule=crashing)
        )

    monkeypatch.setattr(loop, "selection_cases", lambda *_: wanted)
    monkeypatch.setattr(loop, "LearnedPlayer", player)
    trainer = loop.VectorizedPPOTrainer(config, training)
    assert trainer.evaluate() == pytest.approx((worst - waited[0]) / 2)
    arena = evaluation_episodes(training, config, 2)
    scores = held_out._compare(
        {"crash": player()}, arena, wanted, rules=(), seed=0, progress=held_out._silent
    )
    assert scores[1].utility == pytest.approx((worst + waited[1]) / 2)
    assert scores[1].gain == pytest.approx((worst - waited[0]) / 2)
