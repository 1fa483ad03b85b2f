"""Learn to grow in the toy: PPO from nothing, judged on draws it has never seen against the exact oracle.

    python examples/learn_toy.py [--updates 360] [--seed 0]

Prints the share of the oracle's gain as it learns. Gain is utility over never growing, so waiting scores 0 and
the best possible 1. The oracle knows each instance beforehand; the policy has to find out.
"""

import argparse
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import torch

from esper.leyline import DecisionSettings
from esper.simic.agent import PPOAgent, PPOConfig, PPOUpdateMetrics
from esper.simic.env import FlatVectorEnv, GrowthVectorEnv, make_env
from esper.simic.evaluation import LearnedPlayer, play_cases
from esper.simic.gymnasium_loop import learn
from esper.simic.reward import RewardConfig
from esper.tamiyo import GrowthPolicy
from esper.tolaria.worlds.toy.instance import TOY_SUITES, toy_instance
from toy_oracle import best_plan

HORIZON, ENVS = 20, 64
HOW = DecisionSettings(
    {"style": "linear_add", "tempo": 3, "alpha_target": 1.0, "alpha_speed": 0, "alpha_curve": "linear"}
)
"""How a seed is blended in does not matter in the toy: only what, where and when are learned."""


def toy_envs(num_envs: int) -> GrowthVectorEnv:
    return make_env("toy", num_envs, reward=RewardConfig(gamma=1.0), decisions=HOW)


def make_agent(envs: GrowthVectorEnv, updates: int, seed: int) -> PPOAgent:
    policy = GrowthPolicy(envs.space, hidden_size=64, generator=torch.Generator().manual_seed(seed))
    config = PPOConfig(
        lr=1e-3,
        lr_anneal_steps=updates,
        gamma=1.0,
        gae_lambda=0.8,
        # Most seeds harm, so a policy that explores little learns to wait before it learns what helps.
        entropy_coef=0.1,
        entropy_coef_min=0.005,
        entropy_anneal_steps=int(0.75 * updates),
        normalize_observations=True,
        normalize_rewards=True,
        num_minibatches=8,
        target_kl=0.03,
    )
    return PPOAgent(
        policy, config, num_envs=ENVS, num_steps=HORIZON, seed=seed, slot_config=envs.space.slot_config
    )


@dataclass(frozen=True, slots=True)
class Score:
    gain: float
    """Share of the oracle's gain."""
    utility: float
    """Share of the oracle's utility."""


class Examiner:
    """Scores a policy, greedy, on cases it was not trained on."""

    def __init__(self, cases: Sequence[str]) -> None:
        self.cases = list(cases)
        self.envs = toy_envs(len(cases))
        self.plans = [best_plan(toy_instance(case), horizon=HORIZON) for case in cases]

    def score(self, agent: PPOAgent) -> Score:
        wanted = [(case, host_seed) for host_seed, case in enumerate(self.cases)]
        episodes = play_cases(LearnedPlayer(agent.actor), self.envs.episodes, wanted)
        oracle_gain = fmean(plan.gain for plan in self.plans)
        oracle_utility = fmean(plan.utility for plan in self.plans)
        gain = fmean(episode.gain for episode in episodes if episode.gain is not None)
        utility = fmean(episode.utility or 0.0 for episode in episodes)
        return Score(gain / oracle_gain, utility / oracle_utility)


def train(updates: int, seed: int, examiner: Examiner, *, every: int = 40) -> Score:
    """Learn for so many updates; prints how well now and then."""
    envs = toy_envs(ENVS)
    agent = make_agent(envs, updates, seed)
    envs.require_layout(agent.policy.layout)
    began = time.perf_counter()

    def show(metrics: PPOUpdateMetrics) -> None:
        if agent.updates % every == 0:
            score = examiner.score(agent)
            print(
                f"{agent.updates:4} updates, {agent.env_steps:7,} steps, {time.perf_counter() - began:4.0f} s: "
                f"{score.gain:6.1%} of the oracle's gain, {score.utility:.1%} of its utility "
                f"(KL {metrics.approx_kl:.3f})",
                flush=True,
            )

    learn(agent, FlatVectorEnv(envs), updates * ENVS * HORIZON, seed=seed, progress=show)
    return examiner.score(agent)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--updates", type=int, default=360)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="advantage std", category=RuntimeWarning)
    score = train(arguments.updates, arguments.seed, Examiner(TOY_SUITES["toy"].held_out(128)))
    print(f"on 128 unseen draws: {score.gain:.1%} of the oracle's gain, {score.utility:.1%} of its utility")


if __name__ == "__main__":
    main()
