"""Controls of equal size: hosts and policies made from the seeds that another episode kept on the same host.

    static          the bare host, widened to as many parameters, which never grows
    from_birth      the same seeds, grown from the first epoch on
    from_scratch    the same architecture, built in before the first step and trained as one
    random_matched  as many seeds of about the same sizes; slot, epoch and blueprint at random
    blind           the decisions of an episode on another instance

`esper.benchmark.arms` makes arms of them.
"""

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import pairwise, product
from typing import Literal

import numpy as np
import torch
from torch import nn

from esper.benchmark.rows import SeedRow
from esper.kasmina import GrowingModel
from esper.kasmina.hosts import ConvNet
from esper.leyline import ActionSpec, BlueprintCard, DecisionSettings, LifecycleOp, Situation, Stage, Style
from esper.simic.env.episodes import Episodes
from esper.tamiyo.actions import Actions
from esper.tamiyo.rules import Clause, Schedule, SchedulePolicy
from esper.tamiyo.rules.policy import refusal
from esper.tolaria.data import TaskData
from esper.tolaria.engine.host import TrainedHost
from esper.tolaria.tasks import Instance, forget, register, task

# static: a wider host


class NotWidenable(ValueError):
    """A host of a class that cannot be widened."""


@dataclass(frozen=True, slots=True)
class ConvShape:
    """The arguments of a `ConvNet`."""

    channels: int
    classes: int
    dims: Literal[1, 2]
    widths: tuple[int, ...]
    pools: tuple[int, ...]
    kernel: int
    norm: Literal["group", "batch", "none"]

    @property
    def parameters(self) -> int:
        """How many the host has."""
        sizes = (self.channels, *self.widths)
        taps = self.kernel if self.dims == 1 else self.kernel**2
        per_channel = 1 if self.norm == "none" else 2  # a bias, or a norm's scale and shift
        blocks = sum(
            size_in * size_out * taps + per_channel * size_out for size_in, size_out in pairwise(sizes)
        )
        return blocks + (self.widths[-1] + 1) * self.classes

    def build(self) -> ConvNet:
        """An untrained host of this shape."""
        return ConvNet(**asdict(self))


def shape_of(host: nn.Module) -> ConvShape:
    """The shape of a `ConvNet`; raises NotWidenable for other hosts."""
    if not isinstance(host, ConvNet):
        raise NotWidenable(
            f"the static control widens a ConvNet; how to widen a {type(host).__name__} is not known"
        )
    blocks = [list(block.children()) for block in host.blocks if isinstance(block, nn.Sequential)]
    convs = [layer for block in blocks for layer in block if isinstance(layer, nn.Conv1d | nn.Conv2d)]
    pools = [
        next((layer.kernel_size for layer in block if isinstance(layer, nn.MaxPool1d | nn.MaxPool2d)), 1)
        for block in blocks
    ]
    kinds = {type(layer) for block in blocks for layer in block}
    batch = kinds & {nn.BatchNorm1d, nn.BatchNorm2d}
    return ConvShape(
        channels=convs[0].in_channels,
        classes=host.head.out_features,
        dims=1 if isinstance(convs[0], nn.Conv1d) else 2,
        widths=tuple(conv.out_channels for conv in convs),
        pools=tuple(size if isinstance(size, int) else size[0] for size in pools),
        kernel=convs[0].kernel_size[0],
        norm="group" if nn.GroupNorm in kinds else "batch" if batch else "none",
    )


def widened(shape: ConvShape, parameters: int) -> ConvShape:
    """The nearest in parameters: all widths by one factor of 0.5 to 20, then each by up to two more or less."""

    def distance(candidate: ConvShape) -> tuple[int, tuple[int, ...]]:
        return abs(candidate.parameters - parameters), candidate.widths

    scaled = (
        replace(shape, widths=tuple(max(1, round(width * percent / 100)) for width in shape.widths))
        for percent in range(50, 2000)
    )
    nearest = min(scaled, key=distance)
    steps = product((-2, -1, 0, 1, 2), repeat=len(shape.widths)) if len(shape.widths) <= 4 else ()
    tuned = (
        replace(nearest, widths=tuple(max(1, w + d) for w, d in zip(nearest.widths, step, strict=True)))
        for step in steps
    )
    return min((nearest, *tuned), key=distance)


def require_widenable(case: str) -> None:
    """Raise NotWidenable unless the host of this instance can be made wider."""
    instance = Instance.parse(case)
    if _WIDTH not in task(instance.task).parameters:
        shape_of(instance.row.host(instance.load()))


@contextmanager
def widened_case(case: str, parameters: int) -> Iterator[str]:
    """The same instance on a host of about so many parameters, while the context lasts."""
    instance = Instance.parse(case)
    row = instance.row
    if _WIDTH in row.parameters:
        yield str(of_width(instance, parameters))
        return

    def host(data: TaskData) -> nn.Module:
        return widened(shape_of(row.host(data)), parameters).build()

    wide = register(replace(row, name=f"{row.name}_static_{parameters}", host=host))
    try:
        yield str(Instance(wide.name, instance.parameters))
    finally:
        forget(wide.name)


_WIDTH = "width"
"""The parameter of tasks whose instances choose how wide the host is."""


def of_width(instance: Instance, parameters: int) -> Instance:
    """The same instance with the width at which its host is nearest in parameters."""
    row, data = task(instance.task), instance.load()
    spec, given = row.parameters[_WIDTH], dict(instance.parameters)
    assert spec.low is not None
    assert spec.high is not None
    even = row.complete(given).get("host") == "attention"  # heads share the width
    widths = range(int(spec.low), int(spec.high) + 1, 2 if even else 1)

    def size(width: int) -> int:
        with torch.device("meta"):
            host = row.tailored(given | {_WIDTH: width}).host(data)
        return sum(parameter.numel() for parameter in host.parameters())

    place = bisect_left(widths, parameters, key=size)
    near = widths[max(place - 1, 0) : place + 1]
    return Instance.of(row.name, given | {_WIDTH: min(near, key=lambda width: abs(size(width) - parameters))})


# from_birth and random_matched: schedules


def grown_at(
    seed: SeedRow, epoch: int, *, slot: str | None = None, blueprint: str | None = None
) -> list[Clause]:
    """Grow a seed like this one from `epoch` on, as soon as each step is legal, and fossilize it if it was."""
    place = slot or seed.slot
    germinate = ActionSpec(
        LifecycleOp.GERMINATE,
        place,
        blueprint or seed.blueprint,
        style=Style(seed.style),
        alpha_target=seed.alpha_target,
    )
    clauses = [Clause(epoch, germinate), Clause(epoch + 1, ActionSpec(LifecycleOp.ADVANCE, place))]
    if seed.fossilized:
        clauses.append(Clause(epoch + 2, ActionSpec(LifecycleOp.FOSSILIZE, place)))
    return clauses


def from_birth(seeds: Sequence[SeedRow]) -> Schedule:
    """All seeds from the first epoch on. Those that become fossils come first: they make room for the others."""
    ordered = sorted(seeds, key=lambda seed: not seed.fossilized)
    return Schedule(tuple(clause for seed in ordered for clause in grown_at(seed, 0)))


class RandomMatchedPolicy:
    """As many seeds as another episode kept, of about the same sizes; slots, epochs and blueprints are random."""

    def __init__(self, seeds: Sequence[SeedRow], rng_seed: int) -> None:
        self._seeds, self._rng_seed = tuple(seeds), rng_seed
        self.reset()

    def reset(self) -> None:
        """Forget the schedule that was drawn."""
        self._inner: SchedulePolicy | None = None

    def act(self, situation: Situation) -> ActionSpec:
        """What the schedule says, which is drawn at the first call."""
        if self._inner is None:
            self._inner = SchedulePolicy(self._drawn(situation))
        return self._inner.act(situation)

    def _drawn(self, situation: Situation) -> Schedule:
        rng = np.random.default_rng((0x4A7D, self._rng_seed))
        slots = [situation.slots[place].name for place in rng.permutation(len(situation.slots))]
        last = max(situation.signals.horizon - 6, 1)  # early enough to be blended in
        clauses: list[Clause] = []
        for seed, slot in zip(self._seeds, slots, strict=False):
            near = nearest_in_size(situation.cards[slot], seed.parameters)
            card = near[int(rng.integers(len(near)))]
            clauses += grown_at(seed, int(rng.integers(last)), slot=slot, blueprint=card.name)
        return Schedule(tuple(clauses))


def nearest_in_size(cards: Sequence[BlueprintCard], parameters: int) -> list[BlueprintCard]:
    """The three blueprints that are nearest by the ratio of their parameters."""
    return sorted(cards, key=lambda card: abs(math.log((card.parameters + 1) / (parameters + 1))))[:3]


# from_scratch: the final architecture before the first step


def build_in(model: GrowingModel, seed: SeedRow) -> None:
    """Make a seed part of the host from the start: at its alpha, with the host's learning rate.

    No operation allows that in a run, so the stages of its life are set by hand.
    """
    model.germinate(seed.slot, seed.blueprint, style=seed.style, alpha_target=seed.alpha_target)
    slot = model.slots[seed.slot]
    slot.life.stage, slot.life.alpha = Stage.HOLDING, seed.alpha_target
    slot.life.epochs_in_stage = slot.life.rules.min_holding_epochs
    model.fossilize(seed.slot)
    slot.sync_seed()


class ScratchPlayer:
    """Builds in what the matched episode of each env kept, and then waits."""

    def __init__(self, kept: Sequence[Sequence[SeedRow]]) -> None:
        self._kept = kept

    def begin(self, num_envs: int) -> None:
        """Check that there are seeds for every env."""
        if num_envs != len(self._kept):
            raise ValueError(f"num_envs is {num_envs}; expected {len(self._kept)}")

    def act(self, episodes: Episodes, rewards: np.ndarray[tuple[int], np.dtype[np.float64]]) -> Actions:
        """Wait everywhere; before the first epoch the seeds are built in."""
        del rewards
        for env_idx, seeds in enumerate(self._kept):
            host = episodes.host(env_idx)
            if episodes.episode(env_idx).epoch == 0 and isinstance(host, TrainedHost):
                for seed in seeds:
                    build_in(host.model, seed)
                host.lay_out_seeds()
        return np.zeros((episodes.num_envs, episodes.space.action_layout.head_count), dtype=np.int64)


# blind: decisions that did not look


class BlindPolicy:
    """The decisions of another episode, at the same epochs; what is illegal here is skipped."""

    def __init__(self, decisions: str) -> None:
        self._by_epoch = {clause.epoch: clause.action for clause in Schedule.parse(decisions).clauses}
        retires = any(action.op is LifecycleOp.RETIRE for action in self._by_epoch.values())
        self.decisions = DecisionSettings(retire=retires)
        """RETIRE is a choice where the other episode chose it."""

    def reset(self) -> None:
        """Nothing is remembered."""

    def act(self, situation: Situation) -> ActionSpec:
        """What was done in the other episode at this epoch, or to wait."""
        action = self._by_epoch.get(situation.signals.epoch, ActionSpec())
        return action if refusal(action, situation) is None else ActionSpec()
