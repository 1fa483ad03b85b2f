"""How often intervals of a benchmark exclude 0 where there is no difference, and how wide they come out.

    python benchmarks/study_intervals.py            (half a minute)

Scores are made up: an arm that is worth as much as waiting on average over training seeds, instances and hosts.
"""

import argparse
from dataclasses import dataclass

import numpy as np

from esper.statistics import Resamples, Scores, paired_difference

INSTANCES, SEEDS = 8, 4


@dataclass(frozen=True, slots=True)
class Noise:
    """Standard deviations of what scores are made of."""

    member: float = 0.0
    """Of what a training seed is worth on every host."""
    cell: float = 0.0
    """Of an episode of one controller on one host."""

    def scores(self, rng: np.random.Generator, members: int) -> Scores:
        """(member, instance, seed), paired differences to waiting; 0 on average."""
        worth = self.member * rng.normal(size=(members, 1, 1))
        drawn: Scores = worth + self.cell * rng.normal(size=(members, INSTANCES, SEEDS))
        return drawn


NOISES = {"training seeds differ": Noise(0.02, 0.02), "episodes alone differ": Noise(0.0, 0.02)}


def study(noise: Noise, members: int, tables: int, *, new_instances: bool) -> tuple[float, float]:
    """(share of tables whose interval excludes 0, variance of drawn means over that of the means)."""
    rng, found, means, variances = np.random.default_rng(members), 0, [], []
    waiting = np.zeros((1, INSTANCES, SEEDS))
    for table in range(tables):
        scores = noise.scores(rng, members)
        resamples = Resamples(INSTANCES, SEEDS, draws=1000, seed=table, new_instances=new_instances)
        found += resamples.estimate_of_means(paired_difference, scores, waiting).sign != 0
        variances.append(resamples.means(scores).var())
        means.append(scores.mean())
    return found / tables, float(np.mean(variances) / np.var(means))


def main() -> None:
    """Print a line for each kind of noise, of interval and number of training seeds."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tables", type=int, default=1000)
    chosen = parser.parse_args()
    for name, noise in NOISES.items():
        for new_instances in (False, True):
            for members in (1, 2, 3, 5, 8):
                if members == 1 and noise.member:
                    continue  # one training seed says nothing of others, and is not drawn
                found, wider = study(noise, members, chosen.tables, new_instances=new_instances)
                anew = ", instances anew" if new_instances else ""
                told = f"{found:.1%} exclude 0; variance x {wider:.2f}"
                print(f"{name}{anew}; training seeds {members}: {told}", flush=True)


if __name__ == "__main__":
    main()
