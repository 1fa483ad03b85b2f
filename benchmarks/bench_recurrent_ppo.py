"""Whole training on CartPole without velocities: this learner beside sb3-contrib's RecurrentPPO.

Same process, same thread, same environment, same sizes: hidden 64, one layer of 64 in actor and critic,
8 envs, 64 steps, 4 epochs. Needs the extra `bench`; without it only our side is measured.

    pip install --constraint constraints.txt --editable '.[sb3]'
    python benchmarks/bench_recurrent_ppo.py [--quick] [--steps 50000] [--seed 1]
"""

import argparse
import importlib.util
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from harness import Row, report

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
import ppo_memory
from esper.simic.gymnasium_loop import evaluate

EPISODES = 40


@dataclass(frozen=True, slots=True)
class Result:
    learner: str
    steps_per_second: float
    mean_return: float


def ours(seed: int, steps: int) -> Result:
    agent, steps_per_second = ppo_memory.train(seed, steps)
    envs = ppo_memory.make_envs()
    judged = evaluate(agent.actor(ppo_memory.NUM_ENVS), envs, EPISODES, seed=seed + 10_000)
    envs.close()
    return Result("esper", steps_per_second, judged.mean_return)


def theirs(seed: int, steps: int, batch_size: int, *, shared: bool) -> Result:
    """RecurrentPPO with our coefficients and normalised observations.

    shared: one LSTM for actor and critic, as ours has; else its default, one for each.
    """
    from sb3_contrib import RecurrentPPO
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    config = ppo_memory.CONFIG
    envs = VecNormalize(DummyVecEnv([ppo_memory.make_env] * ppo_memory.NUM_ENVS), norm_reward=False)
    model = RecurrentPPO(
        "MlpLstmPolicy",
        envs,
        learning_rate=config.lr,
        n_steps=ppo_memory.NUM_STEPS,
        batch_size=batch_size,
        n_epochs=config.n_epochs,
        gamma=config.gamma,
        gae_lambda=config.gae_lambda,
        clip_range=config.clip_ratio,
        ent_coef=config.entropy_coef,
        vf_coef=config.value_coef,
        max_grad_norm=config.max_grad_norm,
        policy_kwargs={
            "lstm_hidden_size": ppo_memory.HIDDEN,
            "net_arch": {"pi": [64], "vf": [64]},
            "shared_lstm": shared,
            "enable_critic_lstm": not shared,
        },
        seed=seed,
        device="cpu",
    )
    began = time.perf_counter()
    model.learn(steps)
    steps_per_second = model.num_timesteps / (time.perf_counter() - began)
    envs.training = False
    mean_return, _ = evaluate_policy(model, envs, n_eval_episodes=EPISODES, deterministic=True)
    name = f"sb3-contrib, batch {batch_size}, {'one LSTM' if shared else 'two LSTMs'}"
    return Result(name, steps_per_second, float(np.mean(mean_return)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="8,192 steps: throughput only, no score to speak of"
    )
    parser.add_argument("--steps", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    steps = 8_192 if arguments.quick else arguments.steps
    results = [ours(arguments.seed, steps)]
    if importlib.util.find_spec("sb3_contrib") is None:
        print("sb3-contrib is not installed (extra `sb3`): only our side is measured")
    else:
        # 64 is our minibatch (8 per epoch); 512 the whole rollout at once, the fastest it can go.
        results += [
            theirs(arguments.seed, steps, 64, shared=True),
            theirs(arguments.seed, steps, 64, shared=False),
            theirs(arguments.seed, steps, 512, shared=True),
        ]
    table: list[Row] = [
        {
            "learner": result.learner,
            "steps/s": round(result.steps_per_second),
            "mean return": round(result.mean_return, 1),
            "ours is": f"{results[0].steps_per_second / result.steps_per_second:.1f}x",
        }
        for result in results
    ]
    title = f"CartPole without velocities, {steps:,} steps, seed {arguments.seed} (goal: 5x)"
    report("recurrent_ppo", title, table)


if __name__ == "__main__":
    main()
