"""C12, D3: the learner on Gymnasium environments."""

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorWrapper
from numpy.typing import NDArray

from copies import run_in_a_copy
from esper.simic.agent import PPOAgent, PPOConfig, PPOUpdateMetrics
from esper.simic.gymnasium_loop import AnyVectorEnv, Evaluation, action_layout, collect, evaluate, learn
from esper.tamiyo import ActorCritic, ActorState, PolicyOutput, RecurrentActorCritic

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "ppo_memory.py"
CARTPOLE = PPOConfig(
    lr=1e-3,
    gamma=0.98,
    gae_lambda=0.9,
    entropy_coef=0.0,
    entropy_coef_min=0.0,
    target_kl=None,
    n_epochs=10,
    num_minibatches=8,
)


def cartpole(num_envs: int = 8, mode: AutoresetMode = AutoresetMode.SAME_STEP) -> AnyVectorEnv:
    return SyncVectorEnv([lambda: gym.make("CartPole-v1")] * num_envs, autoreset_mode=mode)


def test_learning_again_begins_new_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    envs = cartpole(2)
    generator = torch.Generator().manual_seed(0)
    policy = RecurrentActorCritic(4, action_layout(envs.single_action_space), generator=generator)
    agent = PPOAgent(policy, PPOConfig(n_epochs=1), num_envs=2, num_steps=4, seed=0)
    first: list[tuple[float, bool]] = []
    act = agent.act

    def spy(observation: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        if agent.buffer.step == 0:
            first.append((float(agent.state.hidden.abs().max()), bool(agent._begins.all())))
        return act(observation, mask)

    monkeypatch.setattr(agent, "act", spy)
    for seed in (0, 1):
        learn(agent, envs, 8, seed=seed)
    assert first == [(0.0, True), (0.0, True)]


class MaskedSwitches(gym.Env[NDArray[np.float32], NDArray[np.int64]]):
    """Two switches to set as shown; of the second one wrong choice is illegal. Stops after four steps."""

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Box(0, 1, (2,), np.float32)
        self.action_space = gym.spaces.MultiDiscrete([2, 3])
        self._shown = np.zeros(2, dtype=np.int64)
        self._time = 0

    def _observe(self) -> tuple[NDArray[np.float32], dict[str, NDArray[np.bool_]]]:
        self._shown = self.np_random.integers(0, 2, size=2)
        return self._shown.astype(np.float32), {"action_mask": np.array([True, True, True, True, False])}

    def reset(
        self, *, seed: int | None = None, options: dict[str, object] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, NDArray[np.bool_]]]:
        super().reset(seed=seed, options=options)
        self._time = 0
        return self._observe()

    def step(
        self, action: NDArray[np.int64]
    ) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, NDArray[np.bool_]]]:
        assert action[1] != 2, "an illegal choice was made"
        reward = float((action == self._shown).sum()) / 2
        self._time += 1
        observation, info = self._observe()
        return observation, reward, False, self._time >= 4, info


@pytest.mark.filterwarnings("ignore:advantage std before normalisation:RuntimeWarning")
@pytest.mark.slow
@pytest.mark.parametrize("memory", [False, True])
def test_masks_truncation_and_several_heads_on_a_gymnasium_env(memory: bool) -> None:
    envs: AnyVectorEnv = SyncVectorEnv([MaskedSwitches] * 4, autoreset_mode=AutoresetMode.SAME_STEP)
    layout = action_layout(envs.single_action_space)
    generator = torch.Generator().manual_seed(0)
    policy = (
        RecurrentActorCritic(2, layout, hidden_size=16, generator=generator)
        if memory
        else ActorCritic(2, layout, generator=generator)
    )
    config = PPOConfig(lr=5e-3, target_kl=None, debug=True, gamma=0.9, entropy_coef=0.0, entropy_coef_min=0.0)
    agent = PPOAgent(policy, config, num_envs=4, num_steps=18, seed=0)
    curve = learn(agent, envs, 4_000, seed=0)
    assert np.mean(curve.returns[-20:]) > 3.2
    assert evaluate(agent.actor(4), envs, 8, seed=1).mean_return == 4.0


class Counting(gym.Env[NDArray[np.float32], np.int64]):
    """Shows the number of the next step, from 1, and pays that of the last; it is stopped after `steps`."""

    def __init__(self, steps: int) -> None:
        self.observation_space = gym.spaces.Box(0, 9, (1,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self._steps, self._time = steps, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, object] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, object]]:
        super().reset(seed=seed, options=options)
        self._time = 0
        return np.ones(1, dtype=np.float32), {}

    def step(self, action: np.int64) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, object]]:
        del action
        self._time += 1
        seen = np.array([self._time + 1], dtype=np.float32)
        return seen, float(self._time), False, self._time == self._steps, {}


def counting(*steps: int) -> AnyVectorEnv:
    makers = [lambda count=count: Counting(count) for count in steps]
    return SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP)


def test_a_truncated_episode_bootstraps_from_the_state_it_was_stopped_in() -> None:
    """Not from the one that the next episode begins in."""
    envs = counting(2, 3)
    policy = ActorCritic(
        1, action_layout(envs.single_action_space), generator=torch.Generator().manual_seed(0)
    )
    agent = PPOAgent(policy, PPOConfig(), num_envs=2, num_steps=3, seed=0)
    observation, info = envs.reset(seed=0)
    for _ in collect(agent, envs, observation, info):
        pass
    with torch.inference_mode():
        stopped_in = policy.critic(torch.tensor([[3.0], [4.0]])).squeeze(-1)
    stopped_at = agent.buffer.truncation_value[[0, 1], [1, 2]]
    assert agent.buffer.truncated.tolist() == [[False, True, False], [False, False, True]]
    torch.testing.assert_close(stopped_at, stopped_in)


class Losing(VectorWrapper[NDArray[np.float32], NDArray[np.int64], NDArray[np.float64]]):
    """Loses the episode of env 0 in the second step."""

    steps = 0

    def step(self, actions: NDArray[np.int64]) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(actions)
        self.steps += 1
        lost = np.array([self.steps == 2, False])
        return observation, reward, terminated, truncated | lost, info | {"lost": lost}


def test_learning_leaves_lost_steps_out(monkeypatch: pytest.MonkeyPatch) -> None:
    envs = Losing(counting(9, 2))  # type: ignore[arg-type]  # Gymnasium orders its type variables otherwise
    policy = ActorCritic(
        1, action_layout(envs.single_action_space), generator=torch.Generator().manual_seed(0)
    )
    agent = PPOAgent(policy, PPOConfig(num_minibatches=1), num_envs=2, num_steps=3, seed=0)
    valid: list[list[bool]] = []
    update = agent.update

    def spy(observation: torch.Tensor) -> PPOUpdateMetrics:
        valid.extend(agent.buffer.valid.tolist())
        return update(observation)

    monkeypatch.setattr(agent, "update", spy)
    curve = learn(agent, envs, 6, seed=0)
    assert valid == [[True, False, True], [True, True, True]]
    assert curve.returns == [3.0]


def test_evaluation_plays_a_lost_episode_again() -> None:
    envs = Losing(counting(9, 2))  # type: ignore[arg-type]  # Gymnasium orders its type variables otherwise
    policy = ActorCritic(
        1, action_layout(envs.single_action_space), generator=torch.Generator().manual_seed(0)
    )
    agent = PPOAgent(policy, PPOConfig(num_minibatches=1), num_envs=2, num_steps=3, seed=0)
    judged = evaluate(agent.actor(2), envs, 2, seed=0)
    assert judged.lengths == (7, 2), "the first two steps of env 0 are of an episode that it lost"
    assert judged.returns == (sum(range(3, 10)), 3.0)


def test_evaluation_begins_every_episode_without_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    envs = counting(2, 3)
    policy = RecurrentActorCritic(
        1,
        action_layout(envs.single_action_space),
        hidden_size=5,
        uses_previous=True,
        generator=torch.Generator().manual_seed(0),
    )
    remembered: list[list[bool]] = []
    paid: list[list[float]] = []
    choose = policy.choose

    def spy(
        observation: torch.Tensor,
        mask: torch.Tensor,
        state: ActorState,
        generator: torch.Generator | None,
    ) -> tuple[torch.Tensor, PolicyOutput, torch.Tensor]:
        remembered.append((state.hidden.abs().amax((0, 2)) > 0).tolist())
        paid.append(state.previous_reward.tolist())
        return choose(observation, mask, state, generator)

    monkeypatch.setattr(policy, "choose", spy)
    agent = PPOAgent(policy, PPOConfig(), num_envs=2, num_steps=4, seed=0)
    judged = evaluate(agent.actor(2), envs, 4, seed=0)
    assert judged == Evaluation(returns=(3.0, 3.0, 6.0, 6.0), lengths=(2, 2, 3, 3))
    assert str(judged) == "mean return 4.500 over 4 episodes of 2.5 steps on average"
    begins = [[step % 2 == 0, step % 3 == 0] for step in range(6)]
    assert remembered == [[not first for first in both] for both in begins]
    assert paid == [[float(step % 2), float(step % 3)] for step in range(6)]


def test_another_autoreset_is_refused() -> None:
    envs = cartpole(2, AutoresetMode.NEXT_STEP)
    agent = PPOAgent(
        ActorCritic(4, action_layout(envs.single_action_space), generator=torch.Generator().manual_seed(0)),
        CARTPOLE,
        num_envs=2,
        num_steps=4,
        seed=0,
    )
    with pytest.raises(ValueError, match=r"autoreset_mode=gymnasium\.vector\.AutoresetMode\.SAME_STEP"):
        learn(agent, envs, 8, seed=0)


def test_spaces_become_layouts() -> None:
    assert action_layout(gym.spaces.Discrete(5)).sizes == (5,)
    assert action_layout(gym.spaces.MultiDiscrete([2, 3])).names == ("action_0", "action_1")
    with pytest.raises(ValueError, match="expected Discrete or flat MultiDiscrete"):
        action_layout(gym.spaces.Discrete(5, start=1))


def test_evaluation_takes_an_equal_share_of_each_env() -> None:
    envs = cartpole(4)
    policy = ActorCritic(
        4, action_layout(envs.single_action_space), generator=torch.Generator().manual_seed(0)
    )
    agent = PPOAgent(policy, CARTPOLE, num_envs=4, num_steps=4, seed=0)
    judged = evaluate(agent.actor(4), envs, 8, seed=0)
    assert judged.returns == judged.lengths  # CartPole pays 1 a step
    assert len(judged.returns) == 8
    with pytest.raises(ValueError, match="episodes is 7; expected a multiple of the 4 envs"):
        evaluate(agent.actor(4), envs, 7, seed=0)


def run_example(*arguments: str) -> dict[str, float]:
    code = "import runpy, sys; path = sys.argv.pop(1); runpy.run_path(path, run_name='__main__')"
    output = run_in_a_copy(code, str(EXAMPLE), *arguments)
    result: dict[str, float] = json.loads(output.strip().splitlines()[-1])
    return result


def test_the_example_ends_with_one_json_line() -> None:
    result = run_example("--steps", "1024")
    assert {"mean_return", "steps_per_second"} <= set(result)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3, 4, 5])
def test_cartpole_without_velocities_is_learned_with_memory(seed: int) -> None:
    assert run_example("--seed", str(seed), "--steps", "50000")["mean_return"] >= 450


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_cartpole_without_velocities_is_not_learned_when_the_state_is_zeroed(seed: int) -> None:
    assert run_example("--seed", str(seed), "--steps", "50000", "--no-memory")["mean_return"] <= 100


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:advantage std before normalisation:RuntimeWarning")
@pytest.mark.parametrize("seed", [1, 2, 3, 4, 5])
def test_cartpole_is_learned_without_memory(seed: int) -> None:
    envs = cartpole()
    policy = ActorCritic(
        4, action_layout(envs.single_action_space), generator=torch.Generator().manual_seed(seed)
    )
    agent = PPOAgent(policy, CARTPOLE, num_envs=8, num_steps=128, seed=seed)
    learn(agent, envs, 50_000, seed=seed)
    assert evaluate(agent.actor(8), envs, 40, seed=seed + 10_000).mean_return >= 475
