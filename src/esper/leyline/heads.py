"""The factored action: its heads, their choices, the operations, and which of them makes which head matter."""

from collections.abc import Mapping
from enum import IntEnum, StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Generic, TypedDict, TypeVar

if TYPE_CHECKING:
    from torch import Tensor  # noqa: F401  named in quotes below

HEAD_NAMES = ("op", "slot", "blueprint", "style", "tempo", "alpha_target", "alpha_speed", "alpha_curve")
"""The action heads in the order they are sampled; the only list of them."""


class LifecycleOp(IntEnum):
    """What a controller may do in one step. The numbers are the choices of the `op` head."""

    WAIT = 0
    GERMINATE = 1
    SET_ALPHA_TARGET = 2
    PRUNE = 3
    FOSSILIZE = 4
    ADVANCE = 5
    RETIRE = 6


def operations(*, retire: bool) -> tuple[LifecycleOp, ...]:
    """The choices of the `op` head in order; RETIRE is one of them just where deciders may retire fossils."""
    return tuple(op for op in LifecycleOp if retire or op is not LifecycleOp.RETIRE)


class Composition(StrEnum):
    """How a seed's output d joins the host's activation h; alpha is a."""

    ADD = "add"
    """y = h + a d(h)"""
    MULTIPLY = "multiply"
    """y = h (1 + a tanh d(h))"""
    GATE = "gate"
    """y = h + a sigmoid(g(h)) d(h)"""


class Curve(StrEnum):
    """The shape of an alpha ramp."""

    LINEAR = "linear"
    COSINE = "cosine"
    SIGMOID_GENTLE = "sigmoid_gentle"
    SIGMOID_NORMAL = "sigmoid_normal"
    SIGMOID_SHARP = "sigmoid_sharp"


class Style(StrEnum):
    """A composition together with the curve of the seed's first ramp."""

    LINEAR_ADD = "linear_add"
    SIGMOID_ADD = "sigmoid_add"
    MULTIPLY = "multiply"
    GATE = "gate"

    @property
    def composition(self) -> Composition:
        """How the seed's output meets the host's."""
        return _STYLE_PARTS[self][0]

    @property
    def compatible(self) -> "tuple[Style, ...]":
        """The styles with the same composition: a seed keeps its composition for life."""
        return tuple(style for style in Style if style.composition is self.composition)

    @property
    def first_curve(self) -> Curve:
        """The shape of the seed's first ramp."""
        return _STYLE_PARTS[self][1]


_STYLE_PARTS = {
    Style.LINEAR_ADD: (Composition.ADD, Curve.LINEAR),
    Style.SIGMOID_ADD: (Composition.ADD, Curve.SIGMOID_NORMAL),
    Style.MULTIPLY: (Composition.MULTIPLY, Curve.LINEAR),
    Style.GATE: (Composition.GATE, Curve.LINEAR),
}

STYLES = tuple(Style)
TEMPOS = (3, 5, 8)
"""Epochs of a seed's first ramp."""
ALPHA_TARGETS = (0.5, 0.7, 1.0)
ALPHA_SPEEDS = (0, 3, 5, 8)
"""Epochs of a later ramp, up or down; 0 is at once."""
ALPHA_CURVES = tuple(Curve)

CHOICES: Mapping[str, tuple[LifecycleOp | str | float, ...]] = MappingProxyType(
    {
        "op": tuple(LifecycleOp),
        "style": STYLES,
        "tempo": TEMPOS,
        "alpha_target": ALPHA_TARGETS,
        "alpha_speed": ALPHA_SPEEDS,
        "alpha_curve": ALPHA_CURVES,
    }
)
"""head -> its choices in order, for the heads that are the same for every host; not slot and blueprint.

Of `op` these are all there are; a decider has those of `operations`."""

CAUSAL_TABLE: Mapping[LifecycleOp, tuple[str, ...]] = MappingProxyType(
    {
        LifecycleOp.WAIT: ("op",),
        LifecycleOp.GERMINATE: ("op", "slot", "blueprint", "style", "tempo", "alpha_target"),
        LifecycleOp.SET_ALPHA_TARGET: ("op", "slot", "style", "alpha_target", "alpha_speed", "alpha_curve"),
        LifecycleOp.PRUNE: ("op", "slot", "alpha_speed", "alpha_curve"),
        LifecycleOp.FOSSILIZE: ("op", "slot"),
        LifecycleOp.ADVANCE: ("op", "slot"),
        LifecycleOp.RETIRE: ("op", "slot", "alpha_speed", "alpha_curve"),
    }
)
"""operation -> the heads it makes relevant. Sampling, loss, entropy and KL all read this one table."""


_Value = TypeVar("_Value")


class _ByHead(TypedDict, Generic[_Value]):
    op: _Value
    slot: _Value
    blueprint: _Value
    style: _Value
    tempo: _Value
    alpha_target: _Value
    alpha_speed: _Value
    alpha_curve: _Value


class ActionDict(_ByHead["Tensor"]):
    """One choice index per head, batched: each value has shape (env,) or (env, step)."""


class HeadLogProbs(_ByHead["Tensor"]):
    """Log-probability of the chosen action per head; exactly 0 where the head is irrelevant."""


class HeadEntropies(_ByHead[float | None]):
    """Mean entropy per head where it was relevant and had a choice; None where that never happened."""
