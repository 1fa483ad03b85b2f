"""Watching 64 hosts of 3 slots: taking in an epoch, the observation, the masks (goal: under 1 ms in all).

    python benchmarks/bench_observation.py [--quick]

The hosts only hold ready-made readings: what a host needs to make its own is measured beside, on a real one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

import esper
from esper.kasmina.hosts import ConvNet
from esper.leyline import (
    BlueprintCard,
    EpochReport,
    LegalOperations,
    LifecycleOp,
    SlotConfig,
    SlotReading,
    SlotSnapshot,
)
from esper.tamiyo import GrowthSpace, Observer
from harness import Row, arguments, interleaved_seconds, median_milliseconds, report

ENVS = 64


@dataclass(frozen=True)
class ReadyHost:
    """A host that has nothing left to compute."""

    slot_config: SlotConfig
    cards: Mapping[str, tuple[BlueprintCard, ...]]
    host_parameters: int
    added_parameters: int
    training_samples: int
    report: EpochReport
    rows: Sequence[SlotReading]
    seen: tuple[SlotSnapshot, ...]
    legal: Mapping[str, LegalOperations]
    parameter_budget: int | None = None

    def readings(self) -> Sequence[SlotReading]:
        return self.rows

    def snapshots(self) -> tuple[SlotSnapshot, ...]:
        return self.seen

    def legal_operations(self) -> Mapping[str, LegalOperations]:
        return self.legal


def grown_model() -> esper.GrowingModel:
    """The benchmark host with one seed that blends, one that trains and one free slot."""
    model = esper.wrap(ConvNet(1, 10, dims=1), ["blocks.*"], torch.zeros(2, 1, 40))
    model.germinate("blocks.2", "mixer")
    model.tick()
    model.report("blocks.2", gradients_finite=True, probe=0.01, gradient_norm=0.3, gradient_health=1.0)
    model.advance("blocks.2")
    model.germinate("blocks.1", "conv_small")
    model.tick()
    model.report("blocks.2", gradients_finite=True, contribution=0.02, gradient_norm=0.3, gradient_health=1.0)
    model.report("blocks.1", gradients_finite=True, probe=0.01, gradient_norm=0.1, gradient_health=0.9)
    return model


def main() -> None:
    quick = arguments(__doc__ or "").quick
    torch.set_num_threads(1)
    model = grown_model()
    host = ReadyHost(
        slot_config=model.slot_config,
        cards={name: slot.cards for name, slot in model.slots.items()},
        host_parameters=model.host_parameters,
        added_parameters=model.added_parameters,
        training_samples=1000,
        report=EpochReport(2, 1.1, 0.6, 1.2, 0.5, 0.8, None),
        rows=model.readings(),
        seen=tuple(slot.snapshot() for slot in model.slots.values()),
        legal=model.legal_operations(),
    )
    observer = Observer(GrowthSpace.covering([host]), ENVS)
    for env_idx in range(ENVS):
        observer.begin(env_idx, host, horizon=20)

    def record() -> None:
        for env_idx in range(ENVS):
            observer.record(env_idx, host, LifecycleOp.WAIT)

    def record_and_observe() -> None:
        record()
        observer.observe()

    def record_observe_and_mask() -> None:
        record_and_observe()
        observer.masks()

    seconds = interleaved_seconds(
        {
            "record": record,
            "record and observe": record_and_observe,
            "record, observe and masks": record_observe_and_mask,
            "readings of 64 real models": lambda: [model.readings() for _ in range(ENVS)],
            "one situation": lambda: observer.situation(0),
        },
        rounds=50 if quick else 500,
    )
    rows: list[Row] = [
        {
            "what": name,
            "median_us": round(1e3 * median_milliseconds(times), 1),
            "least_us": round(1e6 * min(times), 1),
        }
        for name, times in seconds.items()
    ]
    features = observer.flat.shape[1]
    report("observation", f"Watching {ENVS} hosts x 3 slots, {features} features each, one core", rows)


if __name__ == "__main__":
    main()
