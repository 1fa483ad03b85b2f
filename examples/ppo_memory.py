"""CartPole without velocities: it can be balanced only by remembering.

    python examples/ppo_memory.py --seed 1 --steps 50000              # an LSTM: about 500
    python examples/ppo_memory.py --seed 1 --steps 50000 --no-memory  # the same, its state zeroed each step

The last line is JSON: mean_return over 40 greedy episodes, and steps_per_second of training.
"""

import argparse
import json
import time
import warnings
from collections.abc import Callable

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray
from torch import Tensor

from esper.simic.agent import PPOAgent, PPOConfig, PPOUpdateMetrics
from esper.simic.gymnasium_loop import AnyVectorEnv, action_layout, evaluate, learn
from esper.tamiyo import PolicyInputs, PolicyOutput, RecurrentActorCritic, SequencePlan

NUM_ENVS, NUM_STEPS, HIDDEN = 8, 64, 64
CONFIG = PPOConfig(
    lr=1.5e-3,
    lr_anneal_steps=98,
    gamma=0.98,
    clip_ratio=0.15,  # with 0.2 one of eight seeds fell back to 378 on some processors
    gae_lambda=0.95,
    value_coef=0.1,
    entropy_coef=0.0,
    entropy_coef_min=0.0,
    target_kl=None,
    n_epochs=4,
    num_minibatches=8,
    normalize_observations=True,
)


class Amnesiac(RecurrentActorCritic):
    """The control: the same network, its recurrent state zeroed before every step."""

    def step(self, inputs: PolicyInputs, hidden: Tensor) -> tuple[PolicyOutput, Tensor]:
        return super().step(inputs, torch.zeros_like(hidden))

    def forward(
        self, inputs: PolicyInputs, initial_hidden: Tensor | None = None, plan: SequencePlan | None = None
    ) -> PolicyOutput:
        if initial_hidden is None or plan is None:
            raise ValueError("initial_hidden and plan are missing")
        steps = len(inputs.observation)
        alone = SequencePlan.build(
            np.ones(steps, dtype=np.bool_), np.ones(steps, dtype=np.int64), inputs.observation.device
        )
        return super().forward(inputs, initial_hidden.new_zeros(2, steps, self.hidden_size), alone)


def make_env() -> gym.Env[NDArray[np.float32], np.int64]:
    """CartPole-v1 that shows the cart's position and the pole's angle, not how fast they change."""
    env: gym.Env[NDArray[np.float32], np.int64] = gym.make("CartPole-v1")
    return gym.wrappers.TransformObservation(
        env, lambda observation: observation[[0, 2]], gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    )


def make_envs(num_envs: int = NUM_ENVS) -> AnyVectorEnv:
    return SyncVectorEnv([make_env] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)


def train(
    seed: int, steps: int, *, memory: bool = True, progress: Callable[[PPOUpdateMetrics], None] | None = None
) -> tuple[PPOAgent, float]:
    """Train on CartPole without velocities; returns the agent and environment steps per second."""
    envs = make_envs()
    network = RecurrentActorCritic if memory else Amnesiac
    policy = network(
        2,
        action_layout(envs.single_action_space),
        hidden_size=HIDDEN,
        generator=torch.Generator().manual_seed(seed),
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "n_epochs 4 with memory is elevated", RuntimeWarning)
        agent = PPOAgent(policy, CONFIG, num_envs=NUM_ENVS, num_steps=NUM_STEPS, seed=seed)
    began = time.perf_counter()
    learn(agent, envs, steps, seed=seed, progress=progress)
    elapsed = time.perf_counter() - began
    envs.close()
    return agent, agent.env_steps / elapsed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=50_000, help="environment steps over all envs")
    parser.add_argument("--no-memory", action="store_true", help="zero the LSTM's state at every step")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    agent, steps_per_second = train(arguments.seed, arguments.steps, memory=not arguments.no_memory)
    envs = make_envs()
    judged = evaluate(agent.actor(NUM_ENVS), envs, 40, seed=arguments.seed + 10_000)
    envs.close()
    result = {
        "seed": arguments.seed,
        "steps": arguments.steps,
        "memory": not arguments.no_memory,
        "mean_return": judged.mean_return,
        "steps_per_second": round(steps_per_second, 1),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
