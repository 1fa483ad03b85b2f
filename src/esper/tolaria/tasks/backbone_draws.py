"""What the suite `backbone` draws: a published network, samples, and what happened to them; always 800 labels.

The same shifts as in `adapt` are never drawn to train on; half of the held-out list are such.
"""

from collections.abc import Sequence

import numpy as np

from esper.tolaria.data.few_labels import PICTURE_SHIFTS, PICTURES, TEXT_SHIFTS, TEXTS
from esper.tolaria.data.shifts import SHIFTS
from esper.tolaria.tasks.adapt_draws import DRAWN_SHIFTS, HELD_OUT_SHIFTS, Parameters
from esper.tolaria.tasks.backbones import BACKBONES
from esper.tolaria.tasks.instance import Instance

DRAWN = tuple(shift for shift in PICTURE_SHIFTS if shift in DRAWN_SHIFTS)
HELD_OUT = tuple(shift for shift in PICTURE_SHIFTS if shift in HELD_OUT_SHIFTS)
_AMOUNTS = {
    "noise": (0.2, 1.2),
    "contrast": (0.6, 0.9),
    "blur": (0.7, 2.5),
    "turn": (0.15, 1.0),
    "shuffle": (0.05, 0.4),
    "stretch": (0.3, 1.0),
}
"""shift of pictures -> the amounts that are drawn."""
_TYPOS = (0.05, 0.3)


def draw_target(rng: np.random.Generator, shifts: Sequence[str]) -> Parameters:
    """A network and its target, with one of these shifts that its samples can have; without their seed."""
    fitting = [
        each
        for each in BACKBONES.values()
        if not each.reads_texts or any(shift in TEXT_SHIFTS for shift in shifts)
    ]
    backbone = fitting[int(rng.integers(len(fitting)))]
    possible = [shift for shift in shifts if not backbone.reads_texts or shift in TEXT_SHIFTS]
    shift = str(rng.choice(possible))
    parameters: Parameters = {
        "backbone": backbone.name,
        "samples": str(rng.choice(tuple(TEXTS if backbone.reads_texts else PICTURES))),
        "shift": shift,
    }
    if SHIFTS[shift].most is not None:
        low, high = _TYPOS if backbone.reads_texts else _AMOUNTS[shift]
        parameters["amount"] = round(float(rng.uniform(low, high)), 2)
    return parameters


def covering() -> tuple[Instance, ...]:
    """An instance of every network: between them they have every slot and every blueprint."""
    samples = {True: next(iter(TEXTS)), False: next(iter(PICTURES))}
    return tuple(
        Instance.of("backbone", {"backbone": each.name, "samples": samples[each.reads_texts]})
        for each in BACKBONES.values()
    )
