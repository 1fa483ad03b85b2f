"""What may happen to samples after a network has learned them.

    inputs    noise, contrast, blur
    geometry  mirror, turn, shuffle, stretch
    labels    rename, merge

Inputs are (sample, position) or (sample, row, column). Only element-wise arithmetic in a fixed order, and rounded
constants: the same to the bit on any machine.
"""

import math
from collections.abc import Callable
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from esper.tolaria.data.mnist1d import reordering

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]


class ShiftKind(NamedTuple):
    """One shift of the table."""

    group: str
    """What it changes: inputs, geometry, labels, domain, or nothing."""
    most: float | None
    """The largest amount; None where there is no more or less of it."""
    doc: str
    """What an amount means."""


SHIFTS = {
    "none": ShiftKind("none", None, "the samples are what was learned"),
    "noise": ShiftKind("inputs", 4.0, "deviation of white noise, over that of the samples"),
    "contrast": ShiftKind(
        "inputs", 2.0, "share of the contrast that is lost; from 1 on it comes back inverted"
    ),
    "blur": ShiftKind("inputs", 4.0, "deviation of a Gaussian filter, in positions"),
    "mirror": ShiftKind("geometry", None, "positions run backwards"),
    "turn": ShiftKind("geometry", 1.0, "turned about the centre, in half turns; pictures alone"),
    "shuffle": ShiftKind("geometry", 1.0, "share of the positions that change places"),
    "stretch": ShiftKind("geometry", 2.0, "enlarged about the centre, by so much more than it was"),
    "rename": ShiftKind("labels", None, "no class keeps its name"),
    "merge": ShiftKind("labels", None, "classes share a name with another one each"),
    "domain": ShiftKind("domain", None, "other templates, figures or signs than those that were learned"),
}


def shift_inputs(inputs: Floats, shift: str, amount: float, rng: np.random.Generator) -> Floats:
    """The samples after the shift; `rng` draws what it draws anew."""
    change = _CHANGES.get(shift)
    return inputs if change is None else change(inputs, amount, rng)


def names_of_classes(shift: str, classes: int, rng: np.random.Generator) -> Labels:
    """(class,) the output that stands for each class after the shift."""
    names = np.arange(classes)
    if shift not in ("rename", "merge"):
        return names
    cycle = rng.permutation(classes)
    names[cycle] = np.roll(cycle, 1)  # no class keeps its name
    return names // 2 if shift == "merge" else names


def _noise(inputs: Floats, amount: float, rng: np.random.Generator) -> Floats:
    return inputs + amount * round(float(inputs.std()), 6) * rng.standard_normal(inputs.shape)


def _contrast(inputs: Floats, amount: float, _: np.random.Generator) -> Floats:
    middle = round(float(inputs.mean()), 6)
    return middle + (1.0 - amount) * (inputs - middle)


def _blur(inputs: Floats, amount: float, _: np.random.Generator) -> Floats:
    """A Gaussian filter along each axis of positions; the ends are mirrored."""
    reach = math.ceil(3 * amount)
    offsets = range(-reach, reach + 1)
    taps = [math.exp(-0.5 * (offset / amount) ** 2) if amount else float(not offset) for offset in offsets]
    for axis in range(1, inputs.ndim):
        around = [(0, 0)] * inputs.ndim
        around[axis] = (reach, reach)
        padded, length = np.pad(inputs, around, mode="symmetric"), inputs.shape[axis]
        inputs = np.zeros_like(inputs)
        for start, tap in enumerate(taps):
            window = [slice(None)] * inputs.ndim
            window[axis] = slice(start, start + length)
            inputs += round(tap / math.fsum(taps), 14) * padded[tuple(window)]
    return inputs


def _mirror(inputs: Floats, _amount: float, _: np.random.Generator) -> Floats:
    return inputs[..., ::-1]


def _shuffle(inputs: Floats, amount: float, rng: np.random.Generator) -> Floats:
    flat = inputs.reshape(len(inputs), -1)
    order = reordering(amount, int(rng.integers(2**31)), flat.shape[1])
    return flat[:, order].reshape(inputs.shape)


def _turn(inputs: Floats, amount: float, _: np.random.Generator) -> Floats:
    sine, cosine = round(math.sin(math.pi * amount), 12), round(math.cos(math.pi * amount), 12)
    rows, columns = _from_centre(inputs.shape[1:])
    return _read_at(inputs, [cosine * rows - sine * columns, sine * rows + cosine * columns])


def _stretch(inputs: Floats, amount: float, _: np.random.Generator) -> Floats:
    return _read_at(inputs, [places / (1.0 + amount) for places in _from_centre(inputs.shape[1:])])


def _from_centre(lengths: tuple[int, ...]) -> list[Floats]:
    """For each axis, how far each position is from the middle."""
    axes = [np.arange(length) - (length - 1) / 2 for length in lengths]
    return list(np.meshgrid(*axes, indexing="ij"))


def _read_at(inputs: Floats, places: list[Floats]) -> Floats:
    """The samples read at these distances from the centre, between positions in proportion; 0 outside."""
    lengths = inputs.shape[1:]
    where = [place + (length - 1) / 2 for place, length in zip(places, lengths, strict=True)]
    low = [np.floor(place).astype(np.int64) for place in where]
    read = np.zeros_like(inputs)
    for corner in product((0, 1), repeat=len(lengths)):
        weight, index = np.ones(lengths), []
        for step, floor, place, length in zip(corner, low, where, lengths, strict=True):
            at = floor + step
            weight = weight * (1.0 - np.abs(place - at)) * ((at >= 0) & (at < length))
            index.append(at.clip(0, length - 1))
        read += weight * inputs[(slice(None), *index)]
    return read


_CHANGES: dict[str, Callable[[Floats, float, np.random.Generator], Floats]] = {
    "noise": _noise,
    "contrast": _contrast,
    "blur": _blur,
    "mirror": _mirror,
    "turn": _turn,
    "shuffle": _shuffle,
    "stretch": _stretch,
}
