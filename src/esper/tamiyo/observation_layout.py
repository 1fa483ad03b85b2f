"""The name of every observed feature, in order. A trained policy depends on this order: add at the end of a part.

`x_known` is 1 where `x` was measured; where it is 0, `x` is 0. A trend is known when the last two epochs are.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from esper.leyline import LifecycleOp, Stage
from esper.tamiyo.blueprints import BLUEPRINT_FEATURES, KINDS
from esper.tamiyo.space import GrowthSpace
from esper.tamiyo.tracker import TRACKED

READY_OPS = tuple(op for op in LifecycleOp if op is not LifecycleOp.WAIT)
"""Operations with a readiness bit per slot; WAIT always is."""

HOST_FEATURES = (
    "time_left",
    "epochs_left",
    "training_samples",
    "plateau",
    "gradient_norm",
    *TRACKED,
    *(f"{name}_change" for name in TRACKED),
    *(f"{name}_slope" for name in TRACKED),
    "loss_gap",
    "accuracy_gap",
    "added_parameters",
    "budget_left",
    "gradient_norm_known",
    *(f"{name}_known" for name in TRACKED),
    *(f"{name}_trend_known" for name in TRACKED),
    "loss_gap_known",
    "accuracy_gap_known",
    "budget_left_known",
    *(f"last_{op.name.lower()}" for op in LifecycleOp),
)

SLOT_FEATURES = (
    "present",
    *(f"stage_{stage.name.lower()}" for stage in Stage),
    *(f"ready_{op.name.lower()}" for op in READY_OPS),
    *(f"grows_{kind}" for kind in KINDS),
    "width",
    "depth",
    "fading",
    "alpha",
    "epochs_to_target",
    "age",
    "epochs_in_stage",
    "parameters",
    "contribution",
    "contribution_trend",
    "probe",
    "alpha_target",
    "gradient_ratio",
    "gradient_health",
    "contribution_known",
    "contribution_trend_known",
    "probe_known",
    "alpha_target_known",
    "gradient_ratio_known",
    "gradient_health_known",
)

PRESENT = SLOT_FEATURES.index("present")
"""The bit that tells a slot from padding."""


def span(names: Sequence[str], first: str, last: str) -> slice:
    """The columns from one feature to another, both included."""
    return slice(names.index(first), names.index(last) + 1)


def observation_parts(space: GrowthSpace) -> dict[str, tuple[int, ...]]:
    """The parts of an observation in their flat order, with their shapes."""
    slots, blueprints = space.slot_count, len(space.blueprints)
    return {
        "host": (len(HOST_FEATURES),),
        "slots": (slots, len(SLOT_FEATURES)),
        "blueprints": (slots, blueprints, BLUEPRINT_FEATURES),
    }


def observation_size(space: GrowthSpace) -> int:
    """Features of a flat observation, without privileged ones."""
    return sum(torch.Size(shape).numel() for shape in observation_parts(space).values())


def flatten_observation(observation: Mapping[str, Tensor], privileged: Tensor | None = None) -> Tensor:
    """host | slots | blueprints | privileged, as one (env, feature) vector; privileged is (env, feature)."""
    parts = [observation[name].flatten(1) for name in ("host", "slots", "blueprints")]
    return torch.cat(parts if privileged is None else [*parts, privileged], dim=-1)
