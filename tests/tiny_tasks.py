"""Tiny tasks for the engine's tests: milliseconds an epoch, primes for sizes."""

from collections.abc import Mapping

import torch
from torch import nn

from esper.kasmina.hosts import ConvNet
from esper.leyline import ActionSpec, LifecycleOp
from esper.tolaria.data import Phase, SealedTest, Split, TaskData
from esper.tolaria.tasks import OptimiserSpec, Parameter, ParameterSpec, Task

LENGTH, CLASSES, BATCH = 13, 3, 11
STEPS_ON_GPU = 5
"""Of an epoch where steps are captured as graphs: some for warming up, and some that are replayed."""
STEPS = 3
"""Of an epoch: the fewest with a middle one. Most tests ask what an epoch does, and not how well it learns."""


def _split(samples: int, seed: int, *, turned: bool) -> Split:
    """Waves of one of three frequencies; `turned`, the frequencies mean other classes."""
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randint(CLASSES, (samples,), generator=generator)
    phases = 6.28 * torch.rand(samples, 1, 1, generator=generator)
    positions = torch.arange(LENGTH) * (0.4 + 0.9 * targets).view(-1, 1, 1)
    inputs = torch.sin(positions + phases) + 0.1 * torch.randn(samples, 1, LENGTH, generator=generator)
    return Split(inputs, (targets + 1) % CLASSES if turned else targets)


def _load(parameters: Mapping[str, Parameter]) -> TaskData:
    samples, change = int(parameters["samples"]), int(parameters["change"])
    phases = [Phase(0, _split(samples, 1, turned=False), _split(47, 2, turned=False))]
    if change:
        phases.append(Phase(change, _split(samples + 6, 3, turned=True), _split(47, 4, turned=True)))
    return TaskData(tuple(phases), SealedTest(_split(53, 5, turned=bool(change))), CLASSES)


def host(data: TaskData) -> nn.Module:
    return ConvNet(1, data.classes, dims=1, widths=(3, 5, 7), pools=(1, 1, 1))


def tiny_task(name: str = "tiny", **changes: object) -> Task:
    row: dict[str, object] = {
        "name": name,
        "summary": "for tests",
        "host": host,
        "slots": ("blocks.*",),
        "blueprints": ("norm", "conv_small", "mixer", "widen"),
        "load": _load,
        "parameters": {
            "samples": ParameterSpec(kind="int", default=61, low=11, doc="training samples"),
            "change": ParameterSpec(kind="int", default=0, low=0, doc="epoch of the change; 0 is none"),
        },
        "optimiser": OptimiserSpec(lr=1e-2),
        "batch": BATCH,
        "steps_per_epoch": STEPS,
        "epochs": 6,
    }
    return Task(**(row | changes))  # type: ignore[arg-type]


def picture_task(name: str = "pictures", **changes: object) -> Task:
    """The same waves as pictures, 13 x 5, channels last."""

    def load(parameters: Mapping[str, Parameter]) -> TaskData:
        data = _load(parameters)
        phases = (
            Phase(phase.start_epoch, _widened(phase.train), _widened(phase.validation))
            for phase in data.phases
        )
        return TaskData(tuple(phases), data.test, data.classes)

    def pictures_host(data: TaskData) -> nn.Module:
        return ConvNet(1, data.classes, dims=2, widths=(3, 5, 7), pools=(1, 1, 1), norm="batch")

    return tiny_task(name, **{"host": pictures_host, "load": load, "channels_last": True, **changes})


def _widened(split: Split) -> Split:
    return Split(split.inputs.unsqueeze(3).repeat(1, 1, 1, 5), split.targets)


def germinate(slot: int = 1, blueprint: str = "conv_small") -> ActionSpec:
    return ActionSpec(LifecycleOp.GERMINATE, f"blocks.{slot}", blueprint)


def advance(slot: int = 1) -> ActionSpec:
    return ActionSpec(LifecycleOp.ADVANCE, f"blocks.{slot}")


def prune(slot: int = 1) -> ActionSpec:
    return ActionSpec(LifecycleOp.PRUNE, f"blocks.{slot}")
