"""Tiny hosts and scripted lives that the tests share. Shapes are primes, so that broadcasting mistakes show."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

import pytest
import torch
from _pytest.mark.structures import ParameterSet
from torch import Tensor, nn

import esper
from esper.kasmina import Blueprint, GrowingModel, all_blueprints
from esper.leyline import Event, Layout, Stage, Style

BATCH = 5
POSITIONS = {
    Layout.IMAGE: (7, 3),
    Layout.SERIES: (11,),
    Layout.TOKENS: (7,),
    Layout.FLAT: (),
    Layout.VOLUME: (5, 2, 3),
    Layout.IMAGE_LAST: (7, 3),
    Layout.VOLUME_LAST: (5, 2, 3),
    Layout.TIME_MAJOR: (7,),
    Layout.ROWS: (),
}
INPUT_CHANNELS = 3
SLOT = "middle"


def _layer(layout: Layout, size_in: int, size_out: int) -> nn.Module:
    if layout.channel_axis == -1:
        return nn.Linear(size_in, size_out)
    return (nn.Conv1d, nn.Conv2d, nn.Conv3d)[layout.position_count - 1](size_in, size_out, 3, padding=1)


class TinyHost(nn.Module):
    """first -> middle (the slot) -> last, of one layout and width.

    Time-major hosts transpose what they get; hosts of rows put it into an order of their own.
    """

    def __init__(self, layout: Layout, channels: int) -> None:
        super().__init__()
        self.layout = layout
        self.first = nn.Sequential(_layer(layout, INPUT_CHANNELS, channels), nn.Tanh())
        self.middle = nn.Sequential(_layer(layout, channels, channels), nn.Tanh())
        self.last = nn.Sequential(_layer(layout, channels, 4), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        if self.layout is Layout.TIME_MAJOR:
            x = x.transpose(0, 1)
        elif self.layout is Layout.ROWS:
            x = torch.cat((x[1:2], x[:1], x[2:]))
        out: Tensor = self.last(self.middle(self.first(x)))
        return out.transpose(0, 1) if self.layout is Layout.TIME_MAJOR else out


def tiny_input(layout: Layout, batch: int = BATCH, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    positions = POSITIONS[layout]
    last = layout.channel_axis == -1
    shape = (*positions, INPUT_CHANNELS) if last else (INPUT_CHANNELS, *positions)
    return torch.randn(batch, *shape, generator=generator)


def tiny_host(layout: Layout, channels: int = 3, seed: int = 0) -> TinyHost:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return TinyHost(layout, channels)


def tiny_model(layout: Layout, channels: int = 3, **options: object) -> GrowingModel:
    """A tiny host, wrapped; without options a copy of one that is wrapped once in a process."""
    if options:
        return _wrapped(layout, channels, **options)
    return copy.deepcopy(_wrapped_once(layout, channels, all_blueprints()))


@cache
def _wrapped_once(layout: Layout, channels: int, _offered: tuple[Blueprint, ...]) -> GrowingModel:
    return _wrapped(layout, channels)


def _wrapped(layout: Layout, channels: int, **options: object) -> GrowingModel:
    wrapping: Callable[..., GrowingModel] = esper.wrap
    return wrapping(tiny_host(layout, channels), [SLOT], tiny_input(layout), **options)


def offered() -> list[tuple[Layout, str]]:
    """Every (layout, blueprint) that Esper ships."""
    return [
        (layout, blueprint.name)
        for layout in Layout
        for blueprint in all_blueprints()
        if layout in blueprint.layouts
    ]


ALL_STYLES = (Layout.FLAT, Layout.IMAGE, Layout.TOKENS)
"""Layouts whose seeds the fast tests try in all styles: channels alone, first and last."""


def in_styles() -> list[ParameterSet]:
    """Every (layout, blueprint) in every style; slow where neither is usual: they meet in the channel axis only."""
    return [
        pytest.param(
            layout,
            blueprint,
            style,
            marks=[] if layout in ALL_STYLES or style is Style.LINEAR_ADD else pytest.mark.slow,
        )
        for layout, blueprint in offered()
        for style in Style
    ]


@dataclass
class Recorder:
    """An event sink that remembers."""

    events: list[Event] = field(default_factory=list)

    def emit(self, event: Event) -> None:
        self.events.append(event)


def grow_until(model: GrowingModel, slot: str, stage: Stage, blueprint: str, **germination: object) -> None:
    """Walk one seed through its life up to `stage`, as early as the rules allow."""
    germinate: Callable[..., None] = model.germinate
    germinate(slot, blueprint, **germination)
    if stage is Stage.TRAINING:
        return
    model.tick()
    model.report(slot, gradients_finite=True)
    model.advance(slot)
    if stage is Stage.BLENDING:
        return
    while model.slots[slot].stage is Stage.BLENDING:
        model.tick()
    if stage is Stage.FOSSILIZED:
        model.fossilize(slot)
    elif stage is Stage.EMBARGOED:
        model.prune(slot)
