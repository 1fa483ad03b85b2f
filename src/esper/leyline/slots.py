"""Slots: their identity and order, what passes through them, where they stand and what can be seen of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Protocol

from esper.leyline.heads import LifecycleOp, Style


class Stage(IntEnum):
    """Where a slot stands. The numbers index observation and mask tensors."""

    is_live: bool
    """Whether a seed in this stage takes one of the `max_live_seeds` places."""

    DORMANT = 0
    """Empty. A seed may be germinated."""
    TRAINING = 1
    """A seed learns behind the host without touching it."""
    BLENDING = 2
    """Alpha is on its way to its target (or to zero, when fading)."""
    HOLDING = 3
    """Alpha has arrived at its target."""
    FOSSILIZED = 4
    """The seed is part of the host, until it is retired."""
    EMBARGOED = 5
    """A seed was pruned or retired here lately; the slot cools down."""


LIVE_STAGES = frozenset({Stage.TRAINING, Stage.BLENDING, Stage.HOLDING})
for _stage in Stage:
    _stage.is_live = _stage in LIVE_STAGES


class Layout(StrEnum):
    """What the axes of an activation mean."""

    IMAGE = "image", "batch", "channel", "height", "width"
    """(batch, channel, height, width)"""
    SERIES = "series", "batch", "channel", "position"
    """(batch, channel, position)"""
    TOKENS = "tokens", "batch", "position", "channel"
    """(batch, position, channel)"""
    FLAT = "flat", "batch", "channel"
    """(batch, channel)"""
    VOLUME = "volume", "batch", "channel", "depth", "height", "width"
    """(batch, channel, depth, height, width); in videos the depth is time"""
    IMAGE_LAST = "image_last", "batch", "height", "width", "channel"
    """(batch, height, width, channel)"""
    VOLUME_LAST = "volume_last", "batch", "depth", "height", "width", "channel"
    """(batch, depth, height, width, channel)"""
    TIME_MAJOR = "time_major", "position", "batch", "channel"
    """(position, batch, channel)"""
    ROWS = "rows", "row", "channel"
    """(row, channel), and more axes of rows before the channels: nodes of a graph, packed positions, proposals"""

    axes: tuple[str, ...]
    """What each axis is, in order."""

    def __new__(cls, name: str, *axes: str) -> "Layout":
        """A member that is a string and knows its axes."""
        member = str.__new__(cls, name)
        member._value_ = name
        member.axes = axes
        return member

    @property
    def channel_axis(self) -> int:
        """The axis of the channels."""
        return -1 if self.axes[-1] == "channel" else self.axes.index("channel")

    @property
    def batch_axis(self) -> int:
        """The axis whose entries have nothing to do with each other: samples, or rows."""
        return self.axes.index("batch") if "batch" in self.axes else 0

    @property
    def position_count(self) -> int:
        """Axes along which positions lie."""
        return sum(axis not in ("batch", "channel", "row") for axis in self.axes)


class BlueprintKind(StrEnum):
    """What a blueprint does, as a feature the controller sees; new blueprints reuse these."""

    NORM = "norm"
    ATTENTION = "attention"
    CONV = "conv"
    MIXER = "mixer"
    POINTWISE = "pointwise"
    COPY = "copy"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class SlotConfig:
    """The slot ids of a model, in order. Two parts that meet compare theirs."""

    slot_ids: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.slot_ids:
            raise ValueError("slot_ids is empty: a growing model needs at least one slot")
        repeated = sorted({slot for slot in self.slot_ids if self.slot_ids.count(slot) > 1})
        if repeated:
            raise ValueError(f"slot_ids names {', '.join(repeated)} more than once")

    def __len__(self) -> int:
        return len(self.slot_ids)

    def index(self, slot_id: str) -> int:
        """The place of a slot; an unknown one is an error that lists the slots."""
        if slot_id not in self.slot_ids:
            raise ValueError(f"unknown slot {slot_id!r}; the slots are {', '.join(self.slot_ids)}")
        return self.slot_ids.index(slot_id)

    def require_same(self, other: "SlotConfig", *, ours: str, theirs: str) -> None:
        """Raise unless both name the same slots in the same order."""
        if self != other:
            raise ValueError(
                f"slot layouts differ: {ours} has ({', '.join(self.slot_ids)}), "
                f"{theirs} has ({', '.join(other.slot_ids)}); order counts"
            )


def gate_parameters(channels: int) -> int:
    """Parameters that a gate adds to a seed: a weight for each channel, and a bias."""
    return channels + 1


@dataclass(frozen=True, slots=True)
class BlueprintCard:
    """A blueprint as offered at one slot: a stable name and the features a policy scores it by."""

    name: str
    kind: BlueprintKind
    parameters: int
    """Parameters a seed of it would add at this slot, without a gate."""


@dataclass(frozen=True, slots=True)
class LegalOperations:
    """What may be executed at one slot now: no more and no less."""

    operations: frozenset[LifecycleOp]
    blueprints: tuple[str, ...]
    """Choices for GERMINATE; empty when GERMINATE is not legal."""
    styles: tuple[Style, ...]
    """Choices for GERMINATE or SET_ALPHA_TARGET, whichever is legal."""
    alpha_targets: tuple[float, ...]
    """Choices for GERMINATE or SET_ALPHA_TARGET, whichever is legal."""


@dataclass(frozen=True, slots=True)
class SlotSnapshot:
    """A slot as other parts read it. What has not been measured is None."""

    name: str
    """The submodule's name."""
    layout: Layout
    """Of the activations that pass."""
    channels: int
    """Their width."""
    stage: Stage
    """Of the seed; DORMANT or EMBARGOED without one."""
    fading: bool
    """Whether a pruned or retired seed is fading out."""
    alpha: float
    """The seed's strength now; 0 without a seed."""
    alpha_target: float | None
    """Where its ramp ends; None without a seed."""
    epochs_to_target: int
    """Epochs left of the ramp."""
    age: int
    """Epochs since germination; 0 without a seed."""
    epochs_in_stage: int
    """Epochs trained since the stage began."""
    blueprint: str | None
    """The seed's kind; None without a seed."""
    style: Style | None
    """How the seed composes; None without a seed."""
    parameters: int
    """Parameters the seed and its gate have added; 0 without a seed."""
    contribution: float | None
    """Validation accuracy with the seed minus without it."""
    gradients_finite: bool | None
    """Whether the seed's gradients were finite in the last epoch."""
    probe: float | None = None
    """Validation accuracy with a TRAINING seed switched on at its target, minus without it."""
    gradient_norm: float | None = None
    """Norm of the seed's gradients in the last epoch."""
    gradient_health: float | None = None
    """Share of its gradient tensors that are finite and neither vanish nor explode, 0..1."""
    decay_epochs: int = 0
    """Epochs in a row in which a fossil's contribution was below its rent; 0 where fossils are not weighed."""
    decayed: bool = False
    """Whether these are as many as `DecisionSettings.decay_epochs`."""


class SeedSlotProtocol(Protocol):
    """One slot, for reading: what can be grown there, and what it costs."""

    @property
    def channels(self) -> int:
        """Width of the activations that pass; a gate's parameters follow from it."""

    @property
    def cards(self) -> tuple[BlueprintCard, ...]:
        """The blueprints offered here, in a stable order."""


# Colours that colour-blind readers can tell apart (Okabe and Ito). No meaning is carried by colour alone


ORANGE, SKY, GREEN, YELLOW = "#E69F00", "#56B4E9", "#009E73", "#F0E442"
BLUE, VERMILION, PURPLE, GREY = "#0072B2", "#D55E00", "#CC79A7", "#8C8C8C"

STAGE_COLOURS: Mapping[Stage, str] = {
    Stage.DORMANT: GREY,
    Stage.TRAINING: ORANGE,
    Stage.BLENDING: SKY,
    Stage.HOLDING: GREEN,
    Stage.FOSSILIZED: BLUE,
    Stage.EMBARGOED: VERMILION,
}
"""Stage of a slot -> its colour, in every drawing."""
