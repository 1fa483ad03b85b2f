"""The observation as numbers: the features of hosts, slots and blueprints, their names and their order.

`x_known` is 1 where `x` was measured; where it is 0, `x` is 0. A trend is known when the last two epochs are.
A trained policy depends on the order of features: add at the end of a part.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esper.leyline import (
    STYLES,
    BlueprintCard,
    BlueprintKind,
    LifecycleOp,
    SlotReading,
    Stage,
    operations,
)
from esper.tamiyo.actions import GrowthSpace
from esper.tamiyo.tracker import TRACKED

Real = TypeVar("Real", np.float32, np.float64)
Array = NDArray[np.float64]

BOUND = 5.0
"""No feature is larger than this in size."""
_LEAST_NORM = 1e-12

KINDS = tuple(BlueprintKind)
_OPS = operations(retire=False)
READY_OPS = tuple(op for op in _OPS if op is not LifecycleOp.WAIT)
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
    *(f"last_{op.name.lower()}" for op in _OPS),
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
    *(f"style_{style}" for style in STYLES),
)

HOST_FEATURES_OF_RATIOS = ("noise",)
"""After HOST_FEATURES where units are ratios: the standard error of validation accuracy."""
SLOT_FEATURES_OF_RATIOS = ("gain_per_parameter", "probe_per_parameter")
"""After SLOT_FEATURES where units are ratios: contribution and probe per host's worth of parameters, as rent is."""

HOST_FEATURES_OF_RETIRING = ("last_retire", "fossil_parameters", "decayed_parameters")
"""Last of a host's where fossils may be retired: the last operation was that; what retiring all, and all that have
decayed, would free."""
SLOT_FEATURES_OF_RETIRING = ("ready_retire", "decayed", "decay")
"""Last of a slot's where fossils may be retired: whether it may be now, counts as decayed, and for how many epochs
it has been below its rent."""

Sight = Literal[1, 2]
"""What a policy reads of an observation and of its previous action: see `GrowthPolicy`."""
SIGHT: Sight = 2
"""Of new policies."""
SLOT_FEATURES_SEEN: Mapping[Sight, int] = {
    1: SLOT_FEATURES.index(f"style_{STYLES[0]}"),
    2: len(SLOT_FEATURES),
}
"""sight -> how many of SLOT_FEATURES it reads: the first ones."""

BLUEPRINT_FEATURE_NAMES = (*(f"kind_{kind}" for kind in KINDS), "cost", "offered")
BLUEPRINT_FEATURES = len(BLUEPRINT_FEATURE_NAMES)
"""Kind one-hot, log relative parameter cost, and whether the blueprint is offered at the slot."""

PRESENT = SLOT_FEATURES.index("present")
"""The feature that is 1 for a slot and 0 for padding."""


def host_features(space: GrowthSpace) -> tuple[str, ...]:
    """The features of a host in order."""
    ratios = HOST_FEATURES_OF_RATIOS if space.units == "ratios" else ()
    return (*HOST_FEATURES, *ratios, *(HOST_FEATURES_OF_RETIRING if space.retire else ()))


def slot_features(space: GrowthSpace) -> tuple[str, ...]:
    """The features of a slot in order."""
    ratios = SLOT_FEATURES_OF_RATIOS if space.units == "ratios" else ()
    return (*SLOT_FEATURES, *ratios, *(SLOT_FEATURES_OF_RETIRING if space.retire else ()))


def slot_features_read(space: GrowthSpace, sight: Sight) -> tuple[str, ...]:
    """The features of a slot that a policy of this sight reads: all where there are more than SLOT_FEATURES."""
    features = slot_features(space)
    return features if len(features) > len(SLOT_FEATURES) else features[: SLOT_FEATURES_SEEN[sight]]


def observation_parts(space: GrowthSpace) -> dict[str, tuple[int, ...]]:
    """The parts of an observation in their flat order, with their shapes."""
    slots, blueprints = space.slot_count, len(space.blueprints)
    return {
        "host": (len(host_features(space)),),
        "slots": (slots, len(slot_features(space))),
        "blueprints": (slots, blueprints, BLUEPRINT_FEATURES),
    }


def observation_size(space: GrowthSpace) -> int:
    """Features of a flat observation, without privileged ones."""
    return sum(torch.Size(shape).numel() for shape in observation_parts(space).values())


def has_fixed_scale(feature: str) -> bool:
    """Whether a feature is a bit, a share that stays within 0..1, a slot's place or a blueprint's cost.

    Running statistics would take such a feature away: where it never varies, they make it 0. All others are
    normalised, also the number of training samples, which changes with the data.
    """
    return feature in _FIXED or feature.startswith(_ONE_HOTS) or feature.endswith("_known")


_FIXED = frozenset(
    [
        "present",
        "fading",
        "decayed",
        "offered",
        "time_left",
        "alpha",
        "alpha_target",
        "gradient_health",
        "width",
        "depth",
        "cost",
    ]
)
_ONE_HOTS = ("last_", "stage_", "ready_", "grows_", "kind_", "style_")


def fixed_scales(space: GrowthSpace) -> Tensor:
    """(feature,) bool: where a flat observation, without privileged features, has a fixed scale."""
    names = {
        "host": host_features(space),
        "slots": slot_features(space),
        "blueprints": BLUEPRINT_FEATURE_NAMES,
    }
    return torch.cat(
        [
            torch.tensor([has_fixed_scale(name) for name in names[part]]).expand(shape).flatten()
            for part, shape in observation_parts(space).items()
        ]
    )


def flatten_observation(observation: Mapping[str, Tensor], privileged: Tensor | None = None) -> Tensor:
    """host | slots | blueprints | privileged, as one (env, feature) vector; privileged is (env, feature)."""
    parts = [observation[name].flatten(1) for name in ("host", "slots", "blueprints")]
    return torch.cat(parts if privileged is None else [*parts, privileged], dim=-1)


# How raw numbers become features: bounded, and sensitive where decisions are made. NaN stays NaN.


def symlog(x: NDArray[Real]) -> NDArray[Real]:
    """sign(x) log(1 + |x|)"""
    return np.copysign(np.log1p(np.abs(x)), x)


def by_percent(x: NDArray[Real]) -> NDArray[Real]:
    """sign(x) log(1 + 100 |x|): for differences of accuracy and shares, where 0.01 matters. 1 gives 4.6."""
    return np.copysign(np.log1p(100.0 * np.minimum(np.abs(x), 1e9)), x)


def epochs(x: NDArray[Real]) -> NDArray[Real]:
    """log(1 + x) / 2: 20 epochs give 1.5, 150 give 2.5."""
    half: NDArray[Real] = np.log1p(x) * x.dtype.type(0.5)
    return half


def magnitude(norm: NDArray[Real]) -> NDArray[Real]:
    """log10 of a norm; 0 counts as very small."""
    return np.log10(np.maximum(norm, _LEAST_NORM))


def bound_in_place(features: NDArray[np.float32]) -> None:
    """Within BOUND, and 0 where unknown (its validity bit says so)."""
    np.copyto(features, 0.0, where=~np.isfinite(features))
    np.clip(features, -BOUND, BOUND, out=features)


def blueprint_features(
    cards: Sequence[Sequence[BlueprintCard]], names: Sequence[str], host_parameters: int
) -> NDArray[np.float32]:
    """Features (slot, blueprint, feature) of the cards each slot offers, blueprints in the order of `names`.

    cost = log(1 + 100 parameters / host parameters), bounded. What a slot does not offer has all features 0.
    """
    if host_parameters < 1:
        raise ValueError(f"host_parameters is {host_parameters}; expected >= 1")
    features = np.zeros((len(cards), len(names), BLUEPRINT_FEATURES), dtype=np.float32)
    for slot, offered in enumerate(cards):
        for card in offered:
            if card.name not in names:
                raise ValueError(f"slot {slot} offers {card.name!r}, which is not among {', '.join(names)}")
            row = features[slot, names.index(card.name)]
            row[KINDS.index(card.kind)] = 1.0
            row[-2] = by_percent(np.array(card.parameters / host_parameters))
            row[-1] = 1.0
    bound_in_place(features)
    return features


class HostReading(NamedTuple):
    """A host in numbers after an epoch, beside its histories. Unknown is NaN."""

    epoch: int
    horizon: int
    training_samples: int
    plateau_epochs: int
    host_parameters: int
    parameter_budget: float
    gradient_norm: float
    last_operation: int
    validation_samples: float = math.nan


def symlog_losses(window: Array) -> None:
    """Losses have no scale of their own: from here on they count by symlog. (..., series), in place."""
    losses = window[..., TRACKED.index("train_loss") : len(TRACKED) : 2]
    losses[:] = symlog(losses)


def write_host_features(
    readings: Array,
    levels: Array,
    change: Array,
    slope: Array,
    added_parameters: Array,
    out: NDArray[np.float32],
) -> None:
    """Into the first columns of out (env, feature), in the order of HOST_FEATURES.

    readings                (env, field of HostReading)
    levels, change, slope   (env, TRACKED) now, over the last epoch, and per epoch of the window; NaN unknown
    added_parameters        (env,)
    """
    epoch, horizon, samples, plateau, host_parameters, budget, gradient_norm, last, _ = readings.T
    epochs_left = np.maximum(horizon - epoch, 0.0)
    # Validation minus training: a host that overfits has a positive loss gap and a negative accuracy gap.
    gaps = (levels[:, 2:] - levels[:, :2]).astype(np.float32)
    added, left = added_parameters / host_parameters, (budget - added_parameters) / host_parameters
    out = out[:, : len(HOST_FEATURES)]
    out[:] = np.column_stack(
        (
            epochs_left / horizon,
            epochs(epochs_left),
            np.log10(np.maximum(samples, 1.0)) - 3.0,  # 1000 samples are 0
            epochs(plateau),
            magnitude(gradient_norm),
            levels,
            by_percent(np.column_stack((change, slope, gaps, added, left)).astype(np.float32)),
            np.isfinite(gradient_norm),
            np.isfinite(levels),
            np.isfinite(slope),
            np.isfinite(gaps),
            np.isfinite(budget),
            _OPERATION_ROWS[last.astype(np.int64)],
        )
    )
    bound_in_place(out)


PADDING = SlotReading(
    stage=-1,
    fading=False,
    alpha=0.0,
    alpha_target=math.nan,
    epochs_to_target=0,
    age=0,
    epochs_in_stage=0,
    blueprint=-1,
    style=-1,
    parameters=0,
    legal=0,
    contribution=math.nan,
    probe=math.nan,
    gradient_norm=math.nan,
    gradient_health=math.nan,
)
"""A place of the space that the host has no slot for: all its features are 0, nothing is legal there."""

FIELD = {name: index for index, name in enumerate(SlotReading._fields)}
"""Columns of readings that were put into an array."""

_OPERATION_ROWS = np.eye(len(LifecycleOp))[:, : len(_OPS)]
_STAGE_ROWS = np.eye(len(Stage) + 1)[:, :-1]  # the last row, of stage -1, is padding
_STYLE_ROWS = np.eye(len(STYLES) + 1)[:, :-1]  # the last row, of style -1, is no seed
_KIND_ROWS = np.eye(len(KINDS) + 1)[:, :-1]  # the last row, of kind -1, is nothing growing
_READY_BITS = np.array(READY_OPS)


def write_slot_features(
    readings: Array,
    contribution_slope: Array,
    growing_kind: NDArray[np.int64],
    place: Array,
    host_parameters: Array,
    host_gradient_norm: Array,
    out: NDArray[np.float32],
) -> None:
    """Into the first columns of out (env, slot, feature), in the order of SLOT_FEATURES.

    readings            (env, slot, field of SlotReading)
    contribution_slope  (env, slot), NaN unknown
    growing_kind        (env, slot) index into KINDS, -1 where nothing grows
    place               (env, slot, 2): relative width and depth of the slot, 0 in padding
    host_...            (env,)
    """
    reading = SlotReading(*np.moveaxis(readings, -1, 0))  # each (env, slot)
    stage, legal, style = (
        np.asarray(numbers, dtype=np.int64) for numbers in (reading.stage, reading.legal, reading.style)
    )
    share = reading.parameters / host_parameters[:, np.newaxis]
    ratio = magnitude(np.asarray(reading.gradient_norm)) - magnitude(host_gradient_norm)[:, np.newaxis]
    shares = np.stack((share, reading.contribution, contribution_slope, reading.probe), axis=-1)
    others = np.stack((reading.alpha_target, ratio, reading.gradient_health), axis=-1)
    measured = np.concatenate((by_percent(shares.astype(np.float32)), others.astype(np.float32)), axis=-1)
    timing = (reading.epochs_to_target, reading.age, reading.epochs_in_stage)
    out = out[..., : len(SLOT_FEATURES)]
    np.concatenate(
        (
            (stage >= 0)[..., np.newaxis],
            _STAGE_ROWS[stage],
            legal[..., np.newaxis] >> _READY_BITS & 1,
            _KIND_ROWS[growing_kind],
            place,
            np.stack((reading.fading, reading.alpha), axis=-1),
            epochs(np.stack(timing, axis=-1)),
            measured,
            np.isfinite(measured[..., 1:]),  # of all but the parameters
            _STYLE_ROWS[style],
        ),
        axis=-1,
        out=out,
        casting="unsafe",
    )
    bound_in_place(out)


def write_features_of_retiring(
    readings: Array,
    decay: NDArray[np.int64],
    decayed: NDArray[np.bool_],
    retired_last: NDArray[np.bool_],
    host_parameters: Array,
    hosts: NDArray[np.float32],
    slots: NDArray[np.float32],
) -> None:
    """Into the last columns of hosts (env, feature) and slots (env, slot, feature), the `..._FEATURES_OF_RETIRING`.

    readings      (env, slot, field of SlotReading)
    decay         (env, slot) epochs in a row in which the fossil there was below its rent
    decayed       (env, slot) whether these are enough to count
    retired_last  (env,) whether the last operation was RETIRE
    """
    parameters = readings[..., FIELD["parameters"]] / host_parameters[:, np.newaxis]
    fossils = readings[..., FIELD["stage"]] == Stage.FOSSILIZED
    freed = [(parameters * chosen).sum(axis=-1) for chosen in (fossils, fossils & decayed)]
    host = hosts[:, -len(HOST_FEATURES_OF_RETIRING) :]
    host[:] = np.column_stack((retired_last, by_percent(np.column_stack(freed).astype(np.float32))))
    slot = slots[..., -len(SLOT_FEATURES_OF_RETIRING) :]
    ready = readings[..., FIELD["legal"]].astype(np.int64) >> LifecycleOp.RETIRE & 1
    slot[:] = np.stack((ready, decayed, epochs(decay.astype(np.float32))), axis=-1)
    bound_in_place(host)
    bound_in_place(slot)
