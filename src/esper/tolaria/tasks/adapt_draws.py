"""What the suite `adapt` draws: a base, what happened to its samples since, and how many labels there are.

Some shifts are never drawn to train on: one of the inputs, one of the geometry, one of the labels. Half of the
held-out list are such.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from esper.tolaria.data.shifts import SHIFTS
from esper.tolaria.data.targets import FAMILIES
from esper.tolaria.tasks.bases import BASES, Base
from esper.tolaria.tasks.instance import Instance
from esper.tolaria.tasks.task import Parameter

Parameters = dict[str, Parameter]

HELD_OUT_SHIFTS = ("blur", "stretch", "merge")
DRAWN_SHIFTS = tuple(shift for shift in SHIFTS if shift not in HELD_OUT_SHIFTS)
_AMOUNTS = {
    "contrast": (0.6, 2.0),
    "blur": (0.7, 2.5),
    "turn": (0.15, 1.0),
    "shuffle": (0.2, 1.0),
    "stretch": (0.3, 1.0),
}
"""shift -> the amounts that are drawn."""
_NOISES = {"series": (0.2, 1.0), "pictures": (0.8, 2.5), "digits": (0.4, 1.6)}
"""family -> the amounts of noise: figures are seen through more of it than series."""
_FLAT = (0.85, 1.15)
"""Lost contrasts that leave nothing to see, which are not drawn."""
_MOST_NOISE = 0.4


def draw_target(rng: np.random.Generator, shifts: tuple[str, ...]) -> Parameters:
    """A base with one of these shifts, without the seed of the samples; a third of them have wrong labels."""
    base = BASES[str(rng.choice(tuple(BASES)))]
    family = FAMILIES[base.family]
    shift = str(rng.choice(possible_shifts(base, shifts)))
    parameters: Parameters = {
        "base": base.name,
        "shift": shift,
        "size": round(float(np.exp(rng.uniform(np.log(100), np.log(family.most_labels))))),
        "noise": 0.0 if rng.random() < 2 / 3 else round(float(rng.uniform(0.05, _MOST_NOISE)), 2),
    }
    if SHIFTS[shift].most is not None:
        parameters["amount"] = draw_amount(base, shift, rng)
    return parameters


def possible_shifts(base: Base, shifts: Sequence[str]) -> tuple[str, ...]:
    """Those of these shifts that its samples can have."""
    return tuple(shift for shift in shifts if shift != "turn" or len(FAMILIES[base.family].sample) == 3)


def draw_amount(base: Base, shift: str, rng: np.random.Generator) -> float:
    """How much of a shift, of which there is more and less."""
    amounts = _NOISES[base.family] if shift == "noise" else _AMOUNTS[shift]
    while True:
        amount = round(float(rng.uniform(*amounts)), 2)
        if shift != "contrast" or not _FLAT[0] < amount < _FLAT[1]:
            return amount


def of_other_shift(parameters: Mapping[str, Parameter]) -> bool:
    """Whether such a shift is never trained on."""
    return parameters.get("shift") in HELD_OUT_SHIFTS


def covering() -> tuple[Instance, ...]:
    """An instance of every base: between them they have every slot and every blueprint."""
    return tuple(Instance.of("adapt", {"base": name, "size": 100}) for name in BASES)
