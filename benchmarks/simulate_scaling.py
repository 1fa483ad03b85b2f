"""How fast a learner with 10, 100 or 1,000 workers would be, from what was measured of one: a simulation.

python benchmarks/simulate_scaling.py [--epoch-ms 60 --learner-ms 1.2 --message-ms 1.5 ...]

Every step of the environments waits for its slowest worker; then the learner reads every answer, observes, rewards
and acts for every host, and asks again. After an episode it learns. A worker that is preempted is started anew
elsewhere and replays the episode, and all others wait for it.
"""

import argparse
from dataclasses import dataclass, fields, replace

import numpy as np

from harness import Row, report

WORKERS = (10, 100, 1000)


@dataclass(frozen=True, slots=True)
class Costs:
    """What one worker and the learner take, in milliseconds unless it says otherwise."""

    epoch_ms: float = 60.0
    """An epoch of one host in a worker of its own core."""
    hosts: int = 4
    """Hosts of one worker."""
    learner_ms: float = 1.2
    """The learner's own work for one epoch of one host: observe, reward, act, store, and its share of the update."""
    message_ms: float = 1.5
    """The learner's work for one message to a worker and its answer."""
    latency_ms: float = 1.0
    """There and back again on the network, on which all messages travel at once."""
    straggling: float = 0.2
    """Standard deviation of the logarithm of the time that a worker takes for a step."""
    preemptions_per_hour: float = 0.05
    """Of one worker."""
    restart_s: float = 14.0
    """Seconds from a worker's loss until another is there."""
    epochs: int = 20
    """Epochs of an episode."""


@dataclass(frozen=True, slots=True)
class Pace:
    """What a simulation found."""

    env_epochs_per_second: float
    efficiency: float
    """Share of what the workers could do if they never waited."""
    learner_share: float
    """Share of the time in which the learner, and nobody else, is at work."""
    straggler_share: float
    """Share of the time in which workers wait for the slowest of them."""
    lost_share: float
    """Share of the time in which all wait for a worker that was preempted."""


def simulate(costs: Costs, workers: int, *, episodes: int = 200, seed: int = 0) -> Pace:
    """Play `episodes` rounds of one episode in every host."""
    rng = np.random.default_rng(seed)
    mean = costs.hosts * costs.epoch_ms / 1e3
    spread = rng.lognormal(-(costs.straggling**2) / 2, costs.straggling, (episodes, costs.epochs, workers))
    slowest = mean * spread.max(axis=2)  # (episode, epoch)
    learner = workers * (costs.message_ms + costs.hosts * costs.learner_ms) / 1e3
    step = slowest + learner + costs.latency_ms / 1e3
    chance = 1 - np.exp(-costs.preemptions_per_hour / 3600 * step * workers)  # that a step loses a worker
    replayed = mean * np.arange(1, costs.epochs + 1)
    lost = (rng.random(step.shape) < chance) * (costs.restart_s + replayed)
    seconds = float(step.sum() + lost.sum())
    done = episodes * costs.epochs * workers * costs.hosts
    perfect = workers * costs.hosts / mean
    return Pace(
        env_epochs_per_second=done / seconds,
        efficiency=done / seconds / perfect,
        learner_share=learner * step.size / seconds,
        straggler_share=float((slowest - mean).sum()) / seconds,
        lost_share=float(lost.sum()) / seconds,
    )


def saturated_at(costs: Costs) -> float:
    """Workers with which the learner's work for a step takes as long as theirs: half of the time is lost."""
    return costs.hosts * costs.epoch_ms / (costs.message_ms + costs.hosts * costs.learner_ms)


def remedies(costs: Costs) -> dict[str, Costs]:
    """What could be changed, one thing at a time."""
    return {
        "as it is": costs,
        "4 times the hosts a worker": replace(costs, hosts=4 * costs.hosts),
        "hosts of 10 times the cost": replace(costs, epoch_ms=10 * costs.epoch_ms),
        "a learner 10 times as fast": replace(
            costs, learner_ms=costs.learner_ms / 10, message_ms=costs.message_ms / 10
        ),
        "no preemption": replace(costs, preemptions_per_hour=0.0),
    }


def rows(costs: Costs) -> list[Row]:
    """A row for each remedy and number of workers."""
    table: list[Row] = []
    for name, changed in remedies(costs).items():
        for workers in WORKERS:
            pace = simulate(changed, workers)
            table.append(
                {
                    "what": name,
                    "workers": workers,
                    "env_epochs_per_s": round(pace.env_epochs_per_second, 1),
                    "efficiency": f"{pace.efficiency:.0%}",
                    "learner": f"{pace.learner_share:.0%}",
                    "stragglers": f"{pace.straggler_share:.0%}",
                    "lost": f"{pace.lost_share:.0%}",
                    "saturated_at": round(saturated_at(changed)),
                }
            )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for each in fields(Costs):
        kind = int if isinstance(each.default, int) else float
        parser.add_argument(f"--{each.name.replace('_', '-')}", type=kind, default=each.default)
    costs = Costs(**vars(parser.parse_args()))
    report("simulate_scaling", f"simulated from {costs}", rows(costs))


if __name__ == "__main__":
    main()
