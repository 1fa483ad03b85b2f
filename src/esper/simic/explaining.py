"""What the policy saw and weighed when it decided, by name: for people who ask why."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from esper.leyline import (
    ALPHA_CURVES,
    ALPHA_SPEEDS,
    ALPHA_TARGETS,
    HEAD_NAMES,
    STYLES,
    TEMPOS,
    LifecycleOp,
    SlotReading,
    Stage,
)
from esper.simic.agent import PPOAgent
from esper.tamiyo import HOST_FEATURES, SLOT_FEATURES, unwrap

DIGITS = 4
"""Of what is recorded for every choice of every decision: enough to see, and small."""
_KNOWN = "_known"
_STAGE_NAMES = tuple(stage.name for stage in Stage)
_HOLDS_A_SEED = frozenset(
    int(stage) for stage in (Stage.TRAINING, Stage.BLENDING, Stage.HOLDING, Stage.FOSSILIZED)
)
_FIXED_CHOICES: Mapping[str, tuple[str, ...]] = {
    "op": tuple(op.name for op in LifecycleOp),
    "style": tuple(style.value for style in STYLES),
    "tempo": tuple(map(str, TEMPOS)),
    "alpha_target": tuple(map(str, ALPHA_TARGETS)),
    "alpha_speed": tuple(map(str, ALPHA_SPEEDS)),
    "alpha_curve": tuple(curve.value for curve in ALPHA_CURVES),
}


def stages(slots: Sequence[str], readings: Sequence[SlotReading]) -> dict[str, str]:
    return {slot: _STAGE_NAMES[reading.stage] for slot, reading in zip(slots, readings, strict=True)}


def alphas(slots: Sequence[str], readings: Sequence[SlotReading]) -> dict[str, float]:
    """Of the slots that hold a seed."""
    return {
        slot: float(reading.alpha)
        for slot, reading in zip(slots, readings, strict=True)
        if reading.stage in _HOLDS_A_SEED
    }


def contributions(slots: Sequence[str], readings: Sequence[SlotReading]) -> dict[str, float]:
    """Of the slots where it is known."""
    return {
        slot: float(reading.contribution)
        for slot, reading in zip(slots, readings, strict=True)
        if not math.isnan(reading.contribution)
    }


@torch.inference_mode()
def rollout_probabilities(agent: PPOAgent) -> NDArray[np.float64]:
    """(env, step, head, choice) of a full rollout: how probable each choice was, rounded; NaN where it was masked
    or the head did not matter."""
    buffer = agent.buffer
    buffer.require_full()
    probability, open_to_choice = (
        unwrap(agent.policy).distribution(buffer.logits, buffer.mask).choice_probabilities(buffer.action)
    )
    known: NDArray[np.float64] = (
        torch.where(open_to_choice, probability.double(), math.nan).cpu().numpy().round(DIGITS)
    )
    return known


def by_choice(
    probabilities: Sequence[Sequence[float]], slots: Sequence[str], blueprints: Sequence[str]
) -> dict[str, dict[str, float]]:
    """One decision's (head, choice) -> head -> choice -> probability, without what was masked."""
    named: dict[str, dict[str, float]] = {}
    for head, row in zip(HEAD_NAMES, probabilities, strict=True):
        names = _FIXED_CHOICES.get(head) or (slots if head == "slot" else blueprints)
        legal = {name: value for name, value in zip(names, row, strict=False) if value == value}
        if legal:
            named[head] = legal
    return named


def by_feature(observation: Sequence[float], slots: Sequence[str]) -> dict[str, float | None]:
    """One flat observation -> feature -> value, of the host and of the slots it has; null where it was unknown."""
    named = _part(observation[: len(HOST_FEATURES)], HOST_FEATURES, "host")
    for place, slot in enumerate(slots):
        start = len(HOST_FEATURES) + place * len(SLOT_FEATURES)
        named |= _part(observation[start : start + len(SLOT_FEATURES)], SLOT_FEATURES, slot)
    return named


def _part(values: Sequence[float], names: Sequence[str], of: str) -> dict[str, float | None]:
    by_name = dict(zip(names, values, strict=True))
    return {
        f"{of}.{name}": round(value, DIGITS) if by_name.get(_bit_of(name), 1.0) else None
        for name, value in by_name.items()
        if not name.endswith(_KNOWN)
    }


def _bit_of(name: str) -> str:
    """The feature that says whether this one was measured; a change and a slope are known together."""
    for end in ("_change", "_slope"):
        if name.endswith(end):
            return f"{name.removesuffix(end)}_trend{_KNOWN}"
    return name + _KNOWN
