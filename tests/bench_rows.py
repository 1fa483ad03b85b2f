"""Rows of benchmarks, made up."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from esper.benchmark import BenchRow, SeedRow

SEED = SeedRow(
    slot="blocks.1",
    blueprint="mixer",
    style="linear_add",
    alpha_target=1.0,
    parameters=713,
    fossilized=True,
    kept=True,
    contribution=0.25,
)
ROW = BenchRow(
    suite="cpu",
    instance="mnist1d",
    arm="wait",
    member=0,
    seed=0,
    host_seed=7,
    test_accuracy=0.75,
    validation_accuracy=0.8125,
    utility=0.8125,
    rent=0.01,
    host_parameters=1426,
    added_parameters=0,
    training_flops=2e9,
    wall_seconds=1.5,
    epochs=2,
    decisions="",
    rolled_back=None,
    seeds=(),
    validation_accuracies=(0.125, 0.5, 0.8125),
    validation_losses=(2.25, 1.5, 0.75),
    train_accuracies=(None, 0.5, 0.875),
)
GROWN = replace(
    ROW,
    arm="grown",
    added_parameters=713,
    decisions="germinate mixer@blocks.1 t=0; advance blocks.1 t=1; fossilize blocks.1 t=5",
    seeds=(SEED,),
)


def rows_of(
    arms: dict[str, Callable[[np.random.Generator, int, int], float]],
    *,
    instances: int = 5,
    seeds: int = 8,
    members: dict[str, int] | None = None,
) -> list[BenchRow]:
    """One row per arm, member and host; an arm is a function of (rng, instance, seed) to test accuracy.

    Every host has luck of its own, which all arms share.
    """
    rows = []
    luck = np.random.default_rng(0).normal(0.0, 0.05, (instances, seeds))
    for arm, accuracy in arms.items():
        for member in range((members or {}).get(arm, 1)):
            rng = np.random.default_rng([sum(map(ord, arm)), member])
            rows += [
                replace(
                    ROW,
                    instance=f"mnist1d:size={1000 + instance}",
                    arm=arm,
                    member=member,
                    seed=seed,
                    test_accuracy=float(luck[instance, seed] + accuracy(rng, instance, seed)),
                )
                for instance in range(instances)
                for seed in range(seeds)
            ]
    return rows
