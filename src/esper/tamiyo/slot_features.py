"""The features of slots, all slots of all envs at once."""

import math

import numpy as np
from numpy.typing import NDArray

from esper.leyline import SlotReading, Stage
from esper.tamiyo.blueprints import KINDS
from esper.tamiyo.observation_layout import PRESENT, READY_OPS, SLOT_FEATURES, span
from esper.tamiyo.scales import bound_in_place, by_percent, epochs, known, magnitude

Array = NDArray[np.float64]

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

_AT = {name: column for column, name in enumerate(SLOT_FEATURES)}
_STAGES = slice(_AT["stage_dormant"], _AT["stage_dormant"] + len(Stage))
_READY = slice(_AT["ready_germinate"], _AT["ready_germinate"] + len(READY_OPS))
_GROWS = slice(_AT[f"grows_{KINDS[0]}"], _AT[f"grows_{KINDS[0]}"] + len(KINDS))
_PLACE = span(SLOT_FEATURES, "width", "depth")
_EPOCHS = span(SLOT_FEATURES, "epochs_to_target", "epochs_in_stage")
_EPOCH_FIELDS = slice(FIELD["epochs_to_target"], FIELD["epochs_in_stage"] + 1)
_BY_PERCENT = span(SLOT_FEATURES, "parameters", "probe")
_MEASURED = span(SLOT_FEATURES, "contribution", "gradient_health")
_MEASURED_KNOWN = span(SLOT_FEATURES, "contribution_known", "gradient_health_known")
_STAGE_ROWS = np.eye(len(Stage) + 1)[:, :-1]  # the last row, of stage -1, is padding
_KIND_ROWS = np.eye(len(KINDS) + 1)[:, :-1]  # the last row, of kind -1, is nothing growing
_OPS = np.array(READY_OPS)


def write_slot_features(
    readings: Array,
    contribution_slope: Array,
    growing_kind: NDArray[np.int64],
    place: Array,
    host_parameters: Array,
    host_gradient_norm: Array,
    out: NDArray[np.float32],
) -> None:
    """Into out (env, slot, feature).

    readings            (env, slot, field of SlotReading)
    contribution_slope  (env, slot), NaN unknown
    growing_kind        (env, slot) index into KINDS, -1 where nothing grows
    place               (env, slot, 2): relative width and depth of the slot, 0 in padding
    host_...            (env,)
    """
    column = dict(zip(FIELD, np.moveaxis(readings, -1, 0), strict=True))  # each (env, slot)
    stage = column["stage"].astype(np.int64)
    out[..., PRESENT] = stage >= 0
    out[..., _STAGES] = _STAGE_ROWS[stage]
    out[..., _READY] = column["legal"].astype(np.int64)[..., np.newaxis] >> _OPS & 1
    out[..., _GROWS] = _KIND_ROWS[growing_kind]
    out[..., _PLACE] = place
    out[..., _AT["fading"]] = column["fading"]
    out[..., _AT["alpha"]] = column["alpha"]
    out[..., _EPOCHS] = epochs(readings[..., _EPOCH_FIELDS])
    out[..., _AT["parameters"]] = column["parameters"] / host_parameters[:, np.newaxis]
    out[..., _AT["contribution"]] = column["contribution"]
    out[..., _AT["contribution_trend"]] = contribution_slope
    out[..., _AT["probe"]] = column["probe"]
    out[..., _BY_PERCENT] = by_percent(out[..., _BY_PERCENT])
    out[..., _AT["alpha_target"]] = column["alpha_target"]
    ratio = magnitude(column["gradient_norm"]) - magnitude(host_gradient_norm)[:, np.newaxis]
    out[..., _AT["gradient_ratio"]] = ratio
    out[..., _AT["gradient_health"]] = column["gradient_health"]
    out[..., _MEASURED_KNOWN] = known(out[..., _MEASURED])
    bound_in_place(out)
