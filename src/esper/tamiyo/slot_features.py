"""The features of slots, all slots of all envs at once."""

import math

import numpy as np
from numpy.typing import NDArray

from esper.leyline import SlotReading, Stage
from esper.tamiyo.blueprints import KINDS
from esper.tamiyo.observation_layout import PRESENT, READY_OPS, SLOT_FEATURES, span
from esper.tamiyo.scales import bounded, by_percent, epochs, known, magnitude

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

_STAGES = span(SLOT_FEATURES, f"stage_{Stage(0).name.lower()}", f"stage_{Stage(len(Stage) - 1).name.lower()}")
_READY = span(SLOT_FEATURES, f"ready_{READY_OPS[0].name.lower()}", f"ready_{READY_OPS[-1].name.lower()}")
_GROWS = span(SLOT_FEATURES, f"grows_{KINDS[0]}", f"grows_{KINDS[-1]}")
_ALWAYS_KNOWN = span(SLOT_FEATURES, "fading", "depth")
_MEASURED = span(SLOT_FEATURES, "alpha_target", "gradient_health")
_MEASURED_KNOWN = span(SLOT_FEATURES, "alpha_target_known", "gradient_health_known")
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
    """readings (env, slot, field of SlotReading) -> out (env, slot, feature).

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
    out[..., _ALWAYS_KNOWN] = bounded(
        np.stack(
            (
                column["fading"],
                column["alpha"],
                epochs(column["epochs_to_target"]),
                epochs(column["age"]),
                epochs(column["epochs_in_stage"]),
                by_percent(column["parameters"] / host_parameters[:, np.newaxis]),
                place[..., 0],
                place[..., 1],
            ),
            axis=-1,
        )
    )
    measured = np.stack(
        (
            column["alpha_target"],
            by_percent(column["contribution"]),
            by_percent(contribution_slope),
            by_percent(column["probe"]),
            magnitude(column["gradient_norm"]) - magnitude(host_gradient_norm)[:, np.newaxis],
            column["gradient_health"],
        ),
        axis=-1,
    )
    out[..., _MEASURED], out[..., _MEASURED_KNOWN] = bounded(measured), known(measured)
