"""The static control: the same host, wider from the beginning, with as many parameters as a grown one."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise, product
from typing import Literal

from torch import nn

from esper.kasmina.hosts import ConvNet
from esper.tolaria.data import TaskData
from esper.tolaria.tasks import Instance, forget, register, task

_STEPS = 2000


class NotWidenable(ValueError):
    """A host of which no wider one can be made."""


@dataclass(frozen=True, slots=True)
class ConvShape:
    """What a `ConvNet` is made of."""

    channels: int
    classes: int
    dims: Literal[1, 2]
    widths: tuple[int, ...]
    pools: tuple[int, ...]
    kernel: int
    norm: Literal["group", "batch", "none"]

    @property
    def parameters(self) -> int:
        sizes = (self.channels, *self.widths)
        kernel = self.kernel * self.kernel if self.dims == 2 else self.kernel
        per_channel = 1 if self.norm == "none" else 2  # a bias, or a norm's scale and shift
        blocks = sum(
            size_in * size_out * kernel + per_channel * size_out for size_in, size_out in pairwise(sizes)
        )
        return blocks + (self.widths[-1] + 1) * self.classes

    def build(self) -> ConvNet:
        return ConvNet(
            self.channels,
            self.classes,
            dims=self.dims,
            widths=self.widths,
            pools=self.pools,
            kernel=self.kernel,
            norm=self.norm,
        )


def shape_of(host: nn.Module) -> ConvShape:
    if not isinstance(host, ConvNet):
        raise NotWidenable(
            f"the static control widens a ConvNet; how to widen a {type(host).__name__} is not known"
        )
    blocks = [list(block.children()) for block in host.blocks if isinstance(block, nn.Sequential)]
    convs = [layer for block in blocks for layer in block if isinstance(layer, nn.Conv1d | nn.Conv2d)]
    pools = [
        next(
            (_size(layer.kernel_size) for layer in block if isinstance(layer, nn.MaxPool1d | nn.MaxPool2d)), 1
        )
        for block in blocks
    ]
    return ConvShape(
        channels=convs[0].in_channels,
        classes=host.head.out_features,
        dims=1 if isinstance(convs[0], nn.Conv1d) else 2,
        widths=tuple(conv.out_channels for conv in convs),
        pools=tuple(pools),
        kernel=convs[0].kernel_size[0],
        norm=_norm({type(layer) for block in blocks for layer in block}),
    )


def widened(shape: ConvShape, parameters: int) -> ConvShape:
    """All widths by one factor, then each by up to two more or less: the nearest in parameters."""

    def apart(candidate: ConvShape) -> tuple[int, tuple[int, ...]]:
        return abs(candidate.parameters - parameters), candidate.widths

    scaled = (
        replace(shape, widths=tuple(max(1, round(width * step / 100)) for width in shape.widths))
        for step in range(50, _STEPS)
    )
    nearest = min(scaled, key=apart)
    steps = product((-2, -1, 0, 1, 2), repeat=len(shape.widths)) if len(shape.widths) <= 4 else ()
    tuned = (
        replace(nearest, widths=tuple(max(1, w + d) for w, d in zip(nearest.widths, step, strict=True)))
        for step in steps
    )
    return min((nearest, *tuned), key=apart)


@contextmanager
def widened_case(case: str, parameters: int) -> Iterator[str]:
    """The same instance on a host of about so many parameters, while the context lasts."""
    instance = Instance.parse(case)
    row = task(instance.task)

    def host(data: TaskData) -> nn.Module:
        return widened(shape_of(row.host(data)), parameters).build()

    wide = register(replace(row, name=f"{row.name}_static_{parameters}", host=host))
    try:
        yield str(Instance(wide.name, instance.parameters))
    finally:
        forget(wide.name)


def _norm(kinds: set[type[nn.Module]]) -> Literal["group", "batch", "none"]:
    if nn.GroupNorm in kinds:
        return "group"
    return "batch" if kinds & {nn.BatchNorm1d, nn.BatchNorm2d} else "none"


def _size(size: int | tuple[int, ...]) -> int:
    return size if isinstance(size, int) else size[0]
