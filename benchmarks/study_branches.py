"""Do paired branches teach faster? PPO as it is, and PPO whose germinations are judged against waiting, side by side.

Half of the envs of a branching round are twins: same case, same host seed, same decisions, until the other
germinates its first seed; there the twin waits, and from there on each goes its own way. Host noise before the branch
is the same in both and minibatches come in the same order after it, so that the difference of their returns is what
that germination was worth: it becomes its advantage. Epochs that both share are counted once, as a snapshot would
allow. Both ways learn from the same number of host-epochs and are judged greedy on the same new draws after each
part of them.

    python benchmarks/study_branches.py --preset toy --seeds 0 1 2 3 4
    python benchmarks/study_branches.py --preset cpu_mixers --set device=cuda --processes 10
"""

import argparse
import multiprocessing
import warnings
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esper.leyline import LifecycleOp
from esper.simic import building
from esper.simic.agent import PPOAgent
from esper.simic.agent.rollout_buffer import Rollout
from esper.simic.config.training_config import TrainingConfig
from esper.simic.env import make_world
from esper.simic.evaluation import LearnedPlayer, Player, RulePlayer, play_cases, utilities
from esper.simic.timing import StopRequest
from esper.simic.trainer import VectorizedPPOTrainer
from esper.tamiyo import unwrap
from esper.tamiyo.rules import rule_policy
from harness import Row, report
from study_learning import drawn, setting_of


class BranchingAgent(PPOAgent):
    """Envs 0, 2, 4 ... play; each one's neighbour is its twin."""

    host_epochs = 0
    """Epochs trained; those that twins share count once."""

    def begin_episodes(self, envs: NDArray[np.bool_] | None = None) -> None:
        super().begin_episodes(envs)
        self._branched_at = np.full(self.num_envs // 2, -1)
        self._probability = torch.zeros(self.num_envs // 2, device=self.device)

    @torch.inference_mode()
    def act(self, observation: Tensor, mask: Tensor | None = None) -> Tensor:
        """As PPO acts; twins copy, and wait where the other germinates first."""
        if self.buffer.step == 0:
            self._branched_at[:] = -1
        action = super().act(observation, mask)
        assert self._pending is not None
        before, decision = self._pending
        shared = torch.from_numpy(self._branched_at < 0).to(self.device)
        action[1::2] = torch.where(shared.unsqueeze(-1), action[::2], action[1::2])
        branches = shared & (action[::2, 0] == LifecycleOp.GERMINATE)
        action[1::2].masked_fill_(
            branches.unsqueeze(-1), LifecycleOp.WAIT
        )  # 0, as in the heads it does not use
        evaluation = unwrap(self.policy).distribution(decision.logits, decision.mask).evaluate(action)
        self._probability = torch.where(branches, evaluation.log_prob[::2].sum(-1).exp(), self._probability)
        self._branched_at[branches.cpu().numpy()] = self.buffer.step
        self._pending = (before, replace(decision, action=action))
        self.state.previous_action = action
        self.host_epochs += self.num_envs // 2 + int((self._branched_at >= 0).sum())
        return action

    def _finish(self, observation: Tensor) -> Rollout:
        rollout = super()._finish(observation)
        envs, steps = self.num_envs, self.buffer.num_steps
        if rollout.steps != envs * steps:
            raise RuntimeError("an episode was lost: this study needs all of them")
        advantage, returns = rollout.advantage.view(envs, steps), rollout.returns.view(envs, steps)
        discounts = self.config.gamma ** torch.arange(steps, device=self.device)
        totals = (self.buffer.reward * discounts).flip(1).cumsum(1).flip(1) / discounts
        for pair, step in enumerate(self._branched_at.tolist()):
            player, twin = 2 * pair, 2 * pair + 1
            end = steps if step < 0 else step
            advantage[twin, :end], returns[twin, :end] = advantage[player, :end], returns[player, :end]
            if step >= 0:
                worth = totals[player, step] - totals[twin, step]
                advantage[player, step] = (1.0 - self._probability[pair]) * worth
                advantage[twin, step] = 0.0  # waiting was not chosen here
        return rollout


class PairedTrainer(VectorizedPPOTrainer):
    """Twins draw the same cases and host seeds."""

    def begin(self) -> None:
        seeds = [self.config.seed * 1000 + env // 2 for env in range(self.config.num_envs)]
        self._observation, self._info = self.envs.reset(seed=seeds)
        self.agent.begin_episodes()


@dataclass(frozen=True, slots=True)
class Job:
    arm: str
    config: TrainingConfig
    wanted: Sequence[tuple[str, int]]
    budget: int
    """Host-epochs."""
    looks: int
    """How often it is judged, evenly over the budget."""


def learn(job: Job) -> tuple[str, int, list[float]]:
    """(arm, seed, mean utility on the new draws after each part of the host-epochs)."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", RuntimeWarning)
    config = job.config
    agent_class = BranchingAgent if job.arm == "branches" else PPOAgent
    with patch.object(building, "PPOAgent", agent_class):
        training = building.build(config)
    building.prepare_baselines(training, config)
    trainer = (PairedTrainer if job.arm == "branches" else VectorizedPPOTrainer)(config, training)
    trainer.begin()
    agent, stop, scores = training.agent, StopRequest(), list[float]()
    while len(scores) < job.looks:
        trainer._run_round(stop)
        spent = agent.host_epochs if isinstance(agent, BranchingAgent) else agent.env_steps
        if spent >= job.budget * (len(scores) + 1) / job.looks:
            scores.append(judge(training, config, LearnedPlayer(agent.actor), job.wanted))
            print(f"{job.arm}, seed {config.seed}: {scores[-1]:.4f} after {spent:,} host-epochs", flush=True)
    training.envs.close()
    return job.arm, config.seed, scores


def waiting(job: Job) -> float:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", RuntimeWarning)
    training = building.build(job.config)
    player = RulePlayer(lambda _: rule_policy("wait", rng=np.random.default_rng(0)))
    return judge(training, job.config, player, job.wanted)


def judge(
    training: building.Training, config: TrainingConfig, player: Player, wanted: Sequence[tuple[str, int]]
) -> float:
    judged = replace(config, workers=0, reward_control_variate=False)
    arena = building.evaluation_episodes(training, judged, min(len(wanted), 32))
    return float(np.mean(utilities(play_cases(player, arena, wanted), config.reward_family)))


def row(arm: str, seed: str, scores: Sequence[float], wait: float) -> Row:
    gains = {f"gain at {100 * (n + 1) // len(scores)} %": score - wait for n, score in enumerate(scores)}
    return {"PPO": arm, "seed": seed, **gains}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--preset", default="toy")
    parser.add_argument("--set", nargs="*", default=[], metavar="FIELD=VALUE", help="settings to change")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--rounds", type=int, help="of plain PPO; its host-epochs are the budget of both")
    parser.add_argument("--looks", type=int, default=4, help="how often to judge, evenly over the budget")
    parser.add_argument("--episodes", type=int, default=128, help="new draws to judge on")
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    changes = dict(setting_of(text) for text in options.set)
    jobs = []
    for seed in options.seeds:
        config = TrainingConfig.preset(
            options.preset, **{"workers": 0, **changes, "seed": seed, "eval_every": 0}
        )
        wanted = drawn(config.suite, options.episodes)
        horizon = config.horizon or make_world(config.suite, 1).horizon
        budget = (options.rounds or config.rounds) * config.num_envs * horizon
        jobs += [Job(arm, config, wanted, budget, options.looks) for arm in ("plain", "branches")]
    with ProcessPoolExecutor(options.processes, multiprocessing.get_context("spawn")) as pool:
        baseline = pool.submit(waiting, jobs[0])
        scores = {(arm, seed): score for arm, seed, score in pool.map(learn, jobs)}
        wait = baseline.result()
    rows = [row(arm, str(seed), score, wait) for (arm, seed), score in scores.items()]
    for arm in ("plain", "branches"):
        of_arm = [score for (name, _), score in scores.items() if name == arm]
        rows.append(row(arm, "mean", np.mean(of_arm, axis=0).tolist(), wait))
    report(
        f"branches_{options.preset}", f"gain over waiting by host-epochs ({jobs[0].budget:,} in all)", rows
    )


if __name__ == "__main__":
    main()
