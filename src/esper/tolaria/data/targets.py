"""Three families of samples that bases have learned, and targets: the same after a shift, with few labels."""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from esper.tolaria.data import mnist1d
from esper.tolaria.data.drawn import FIGURE_CLASSES, SIDE, STAMP, TEST, VALIDATION, draw_figures, stamp
from esper.tolaria.data.shifts import Floats, Labels, names_of_classes, shift_inputs
from esper.tolaria.data.splits import Phase, SealedTest, Split, TaskData, stratified_splits

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
