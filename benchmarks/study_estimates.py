"""Do estimates from recorded episodes say what a controller does on hosts? On the toy it can be played to see.

Fitted Q evaluation and importance weighting estimate what runs are worth, greedy and as they sample, from episodes
that someone else played. Then each run plays the same instances and hosts: its mean return is the truth.

    python benchmarks/study_estimates.py runs/clone runs/offline-0 --offline DATA --updates 1000 --judged 1024
"""

import argparse
import math
from dataclasses import replace
from pathlib import Path

import torch

from esper.runs.offline import discounted, judge_offline
from esper.runs.ship import require_checkpoint
from esper.simic.building import build
from esper.simic.config.training_config import TrainingConfig
from esper.simic.evaluation import LearnedPlayer
from esper.simic.offline.dataset import Dataset
from esper.simic.offline.recorder import record_episodes
from esper.statistics import mean_interval
from harness import Row, report

TOGETHER = 64
"""Hosts that are played side by side."""


def main() -> None:
    options = _options()
    data = Dataset.open(options.offline)
    wanted = [(row.case, row.host_seed) for row in data.rows][: options.judged]
    rows: list[Row] = []
    for run in options.runs:
        for greedy in (True, False):
            said = judge_offline(run, options.offline, updates=options.updates, greedy=greedy)
            low, high, truth = played(run, wanted, greedy=greedy, gamma=data.terms.reward.gamma)
            rows.append(
                {
                    "policy": f"{run.name}, {'greedy' if greedy else 'as it samples'}",
                    "recorded": f"{said.recorded:+.4f}",
                    "fitted Q": f"{said.fitted:+.4f}",
                    "weighted": "-" if said.weighted is None else f"{said.weighted:+.4f}",
                    "effective episodes": "-" if said.effective is None else f"{said.effective:.0f}",
                    "played": f"{truth:+.4f} [{low:+.4f}, {high:+.4f}]",
                }
            )
            print(rows[-1], flush=True)
    report("estimates_toy", f"what {len(data)} recorded episodes say, and {len(wanted)} played ones", rows)


def played(
    run: Path, wanted: list[tuple[str, int]], *, greedy: bool, gamma: float
) -> tuple[float, float, float]:
    """The mean discounted return of a run's policy on these (case, host seed), its interval first."""
    config = TrainingConfig.load(run / "config.json").in_one_process()
    training = build(replace(config, run_name=None, offline=(), num_envs=TOGETHER, num_minibatches=None))
    training.agent.load(require_checkpoint(run))
    generator = None if greedy else torch.Generator().manual_seed(0)
    player = LearnedPlayer(lambda num_envs: training.agent.actor(num_envs, generator=generator))
    returns: list[float] = []
    for start in range(0, len(wanted), TOGETHER):
        recording, _ = record_episodes(
            player, training.envs.episodes, wanted[start : start + TOGETHER], policy=run.name
        )
        returns += discounted(recording, gamma).tolist()
    low, high = mean_interval(returns) or (math.nan, math.nan)
    return low, high, sum(returns) / len(returns)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, help="runs whose controllers are judged")
    parser.add_argument("--offline", nargs="+", type=Path, required=True, help="data sets")
    parser.add_argument("--updates", type=int, default=1000, help="of Q")
    parser.add_argument(
        "--judged", type=int, default=1024, help="hosts to play, the first recorded (%(default)s)"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
