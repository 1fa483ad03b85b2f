"""Three families of samples that bases have learned, and targets: the same after a shift, with few labels.

What may happen to samples after a network has learned them:

    inputs    noise, contrast, blur
    geometry  mirror, turn, shuffle, stretch
    labels    rename, merge

Inputs are (sample, position) or (sample, row, column). Only element-wise arithmetic in a fixed order, and rounded
constants: the same to the bit on any machine.
"""

import math
from collections.abc import Callable
from functools import cache
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from esper.tolaria.data import mnist1d
from esper.tolaria.data.drawn import FIGURE_CLASSES, SIDE, STAMP, TEST, VALIDATION, draw_figures, stamp
from esper.tolaria.data.mnist1d import reordering
from esper.tolaria.data.splits import Phase, SealedTest, Split, TaskData, stratified_splits

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


# Families and their targets

CLUTTER = 0.3
"""Deviation of the noise behind drawn figures."""
_DIGITS_LEARNED, _DIGITS_HELD_OUT, _DIGITS_TESTED = 600, 300, 397
_DIGITS_CLUTTER = 0.1
_INKED = 13
"""Cells of a drawn sign of 5 x 5 that are inked."""
_SAMPLES_TAG, _SHIFT_TAG = 4, 5
"""Name the random streams of a data seed: those of the samples, and what the shift draws."""

Samples = tuple[Floats, Labels]
"""(sample, position...) and (sample,)"""


class Family(NamedTuple):
    """One family of samples."""

    sample: tuple[int, ...]
    """The shape of one, as a network gets it."""
    classes: int
    most_labels: int
    """Training samples that a target can have."""


FAMILIES = {
    "series": Family((1, mnist1d.POSITIONS), mnist1d.CLASSES, 2000),
    "pictures": Family((1, SIDE, SIDE), FIGURE_CLASSES, 2000),
    "digits": Family((1, 8, 8), 10, 500),
}


def source_split(family: str, size: int, data: int) -> Split:
    """What a base learns; of digits there are 600, which no target has."""
    if family == "digits":
        pixels, labels = _digits()
        learned = _digit_parts(data)[0]
        return _split(pixels[learned], labels[learned])
    return _split(*_DRAWN[family](size, data))


def target_data(
    family: str,
    *,
    shift: str,
    amount: float,
    size: int,
    noise: float,
    data: int,
    drawn: int | None = None,
) -> TaskData:
    """A family after a shift, with `size` labelled samples to train on, `noise` of them with wrong labels.

    data   rng seed of the samples
    drawn  rng seed of what the shift draws: places, names, signs; None is that of the samples
    """
    classes = FAMILIES[family].classes
    rng = np.random.default_rng([data if drawn is None else drawn, _SHIFT_TAG])
    parts = _digit_targets(size, data) if family == "digits" and shift != "domain" else None
    if parts is None:
        count = VALIDATION + TEST + size
        inputs, labels = (
            _other_domain(family, count, rng) if shift == "domain" else _DRAWN[family](count, data)
        )
        ends = (VALIDATION, VALIDATION + TEST)
        parts = list(zip(np.split(inputs, ends), np.split(labels, ends), strict=True))
    # one shift for all parts: what it draws anew is the same for each
    lengths = np.cumsum([len(labels) for _, labels in parts])[:-1]
    shifted = np.split(shift_inputs(np.concatenate([each for each, _ in parts]), shift, amount, rng), lengths)
    names = names_of_classes(shift, classes, rng)
    validation, test, known = (names[labels] for _, labels in parts)
    known = mnist1d.mislabel(known, noise, len(set(names.tolist())), data)
    splits = [_split(x, y) for x, y in zip(shifted, (validation, test, known), strict=True)]
    return TaskData((Phase(0, splits[2], splits[0]),), SealedTest(splits[1]), classes)


def _split(inputs: Floats, labels: Labels) -> Split:
    return Split.from_arrays(inputs.astype(np.float32)[:, None], labels)


# Samples as they were learned


def _series(count: int, data: int) -> Samples:
    pool = mnist1d.pool(data, mnist1d.CLASSES)
    return pool.series[:count].astype(np.float64), pool.labels[:count]


def _pictures(count: int, data: int) -> Samples:
    labels = np.arange(count) % FIGURE_CLASSES
    return draw_figures(labels, CLUTTER, np.random.default_rng([data, _SAMPLES_TAG])), labels


_DRAWN: dict[str, Callable[[int, int], Samples]] = {"series": _series, "pictures": _pictures}


@cache
def _digits() -> Samples:
    from sklearn import datasets  # a second's import that few tasks need

    digits = datasets.load_digits()
    return (digits.data / 16).reshape(-1, 8, 8), digits.target.astype(np.int64)


def _digit_targets(size: int, data: int) -> list[Samples]:
    pixels, labels = _digits()
    held_out, tested, known = _digit_parts(data)[1:]
    return [(pixels[part], labels[part]) for part in (held_out, tested, known[:size])]


def _digit_parts(data: int) -> list[NDArray[np.int64]]:
    """Places of the digits that bases learn, always the same, and of others: to validate, to test, to train on."""
    labels = _digits()[1]
    learned, others = stratified_splits(labels, (_DIGITS_LEARNED, len(labels) - _DIGITS_LEARNED), seed=0)
    rest = len(others) - _DIGITS_HELD_OUT - _DIGITS_TESTED
    targets = stratified_splits(labels[others], (_DIGITS_HELD_OUT, _DIGITS_TESTED, rest), seed=data)
    return [learned, *(others[part] for part in targets)]


# Another domain


def _other_domain(family: str, count: int, rng: np.random.Generator) -> Samples:
    """Samples of the family's shape, of templates or signs that are drawn anew."""
    classes, side = FAMILIES[family].classes, FAMILIES[family].sample[-1]
    labels = np.arange(count) % classes
    if family == "series":
        drawn_as = mnist1d.scaled(rng.standard_normal((classes, mnist1d.TEMPLATE)).cumsum(1))
        series = mnist1d.transform(labels, mnist1d.draw(rng, count), drawn_as)
        return (series - round(float(series.mean()), 9)) / round(float(series.std()), 9), labels
    cells = np.tile(np.arange(STAMP**2) < _INKED, (classes, 1))
    signs = rng.permuted(cells, axis=1).reshape(classes, STAMP, STAMP).astype(float)
    clutter = _DIGITS_CLUTTER if family == "digits" else CLUTTER
    return stamp(signs[labels], side, clutter, rng), labels
