"""MNIST-1D, generated: ten short templates, transformed at random (Greydanus 2020, "Scaling down deep learning").

Only element-wise arithmetic in a fixed order, and rounded constants: a matrix product or a sum may differ in the
last bit from one machine to the next, and these data are compared by their hash.
"""

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

POSITIONS = 40
CLASSES = 10
TRAIN_POOL, VALIDATION, TEST = 4000, 500, 2500

TEMPLATE = 12  # points of a template
_LEAST_PAD, _MOST_PAD = 36, 60
_CANVAS = TEMPLATE + _MOST_PAD
_SCALE, _SHEAR = 0.4, 0.75
_SHIFTS = 48  # cyclic translations 0..47
_SMOOTH_NOISE, _WHITE_NOISE = 0.25, 0.02
_SMOOTHING, _REACH = 2.0, 8  # sigma of the noise filter, and where it is cut off

_DRAWINGS = (
    (5, 6, 6.5, 6.75, 7, 7, 7, 7, 6.75, 6.5, 6, 5),
    (5, 3, 3, 3.4, 3.8, 4.2, 4.6, 5, 5.4, 5.8, 5, 5),
    (5, 6, 6.5, 6.5, 6, 5.25, 4.75, 4, 3.5, 3.5, 4, 5),
    (5, 6, 6.5, 6.5, 6, 5, 5, 6, 6.5, 6.5, 6, 5),
    (5, 4.4, 3.8, 3.2, 2.6, 2.6, 5, 5, 5, 5, 5, 5),
    (5, 3, 3, 3, 3, 5, 6, 6.5, 6.5, 6, 4.5, 5),
    (5, 4, 3.5, 3.25, 3, 3, 3, 3, 3.25, 3.5, 4, 5),
    (5, 7, 7, 6.6, 6.2, 5.8, 5.4, 5, 4.6, 4.2, 5, 5),
    (5, 4, 3.5, 3.5, 4, 5, 5, 4, 3.5, 3.5, 4, 5),
    (5, 4, 3.5, 3.5, 4, 5, 5, 5, 5, 4.7, 4.3, 5),
)
"""The published digits, height over time."""


class Draws(NamedTuple):
    """The randomness of n samples."""

    pad: NDArray[np.int64]
    """(n,) zeros appended to the template, 36..60"""
    scale: Floats
    """(n,) in [0, 1)"""
    shift: NDArray[np.int64]
    """(n,) 0..47"""
    smooth: Floats
    """(n, 72) standard normal, filtered before use"""
    white: Floats
    """(n, 72) standard normal"""
    shear: Floats
    """(n,) in [0, 1)"""


class Pool(NamedTuple):
    """All samples of one data seed, balanced: sample i is of class i modulo the number of classes."""

    series: NDArray[np.float32]
    """(7000, 40): training pool, validation, test"""
    labels: NDArray[np.int64]


def templates() -> Floats:
    """(10, 12): each of unit deviation over 6, starting at 0."""
    return scaled(np.array(_DRAWINGS))


def scaled(heights: Floats) -> Floats:
    """Any drawings (class, 12) on the scale of the published digits."""
    return np.array([(row - row[0]) / (6 * row.std()) for row in heights]).round(12)


def draw(rng: np.random.Generator, samples: int) -> Draws:
    """All random numbers of so many samples."""
    return Draws(
        pad=rng.integers(_LEAST_PAD, _MOST_PAD + 1, samples),
        scale=rng.random(samples),
        shift=rng.integers(0, _SHIFTS, samples),
        smooth=rng.standard_normal((samples, _CANVAS)),
        white=rng.standard_normal((samples, _CANVAS)),
        shear=rng.random(samples),
    )


def transform(labels: NDArray[np.int64], draws: Draws, drawn_as: Floats | None = None) -> Floats:
    """(n, 40): pad, stretch, scale, shift, fill the padding with smooth noise, add white noise, shear, shorten.

    drawn_as  (class, 12) scaled drawings; None is the published digits
    """
    canvas, drawn = _stretch((templates() if drawn_as is None else drawn_as)[labels], draws.pad)
    canvas = canvas * (1 + _SCALE * (draws.scale[:, None] - 0.5))
    source = (np.arange(_CANVAS) - draws.shift[:, None]) % _CANVAS
    canvas, drawn = np.take_along_axis(canvas, source, 1), np.take_along_axis(drawn, source, 1)
    canvas = np.where(drawn, canvas, _smooth(_SMOOTH_NOISE * draws.smooth))
    canvas = canvas + _WHITE_NOISE * draws.white
    slope = _SHEAR * (draws.shear[:, None] - 0.5)
    canvas = canvas - slope * ((np.arange(_CANVAS) / (_CANVAS - 1)) - 0.5)
    return _shorten(canvas)


def _stretch(shapes: Floats, pad: NDArray[np.int64]) -> tuple[Floats, NDArray[np.bool_]]:
    """Pad each row with its number of zeros, stretch it to the canvas; also where the template was drawn."""
    padded = np.concatenate([shapes, np.zeros((len(shapes), _CANVAS - TEMPLATE + 1))], 1)
    # Whole numbers, so that a point that falls on a grid point does so exactly.
    steps = np.arange(_CANVAS) * (TEMPLATE - 1 + pad[:, None])  # (n, 72), in 71sts of a grid step
    left, rest = steps // (_CANVAS - 1), steps % (_CANVAS - 1)
    weight = rest / (_CANVAS - 1)
    low, high = np.take_along_axis(padded, left, 1), np.take_along_axis(padded, left + 1, 1)
    return low + weight * (high - low), steps < TEMPLATE * (_CANVAS - 1)


def _smooth(noise: Floats) -> Floats:
    """A Gaussian filter along the canvas; the ends are mirrored."""
    taps = [math.exp(-0.5 * (offset / _SMOOTHING) ** 2) for offset in range(-_REACH, _REACH + 1)]
    padded = np.pad(noise, ((0, 0), (_REACH, _REACH)), mode="symmetric")
    out = np.zeros_like(noise)
    for offset, tap in enumerate(taps):
        out += round(tap / math.fsum(taps), 14) * padded[:, offset : offset + _CANVAS]
    return out


def _shorten(canvas: Floats) -> Floats:
    steps = np.arange(POSITIONS) * (_CANVAS - 1)  # in 39ths of a canvas step
    left = np.minimum(steps // (POSITIONS - 1), _CANVAS - 2)
    weight = steps / (POSITIONS - 1) - left
    return canvas[:, left] + weight * (canvas[:, left + 1] - canvas[:, left])


@lru_cache(maxsize=128)  # as many as the cases of a training: 1.1 MB each, and 90 ms to make
def pool(data: int, classes: int) -> Pool:
    """Every sample there is for a data seed, on a scale where the training pool has mean 0 and deviation 1."""
    samples = TRAIN_POOL + VALIDATION + TEST
    labels = np.arange(samples) % classes
    series = transform(labels, draw(np.random.default_rng([data, classes]), samples))
    known = series[:TRAIN_POOL]
    series = (series - round(float(known.mean()), 9)) / round(float(known.std()), 9)
    return Pool(series.astype(np.float32), labels.astype(np.int64))


def reordering(shuffled: float, permutation: int, positions: int = POSITIONS) -> NDArray[np.int64]:
    """Where each position's value comes from: a random cycle through that fraction of the positions.

    A cycle leaves no chosen position in place. One position alone has nowhere to go.
    """
    source = np.arange(positions)
    chosen = np.random.default_rng([permutation, positions]).permutation(positions)
    chosen = chosen[: round(shuffled * positions)]
    source[chosen] = np.roll(chosen, 1)
    return source


def mislabel(labels: NDArray[np.int64], noise: float, classes: int, data: int) -> NDArray[np.int64]:
    """The same labels with exactly round(noise x samples) of them wrong, drawn uniformly from the other classes."""
    rng = np.random.default_rng([data, classes, 1])  # one stream for the pool: a smaller set is a part of it
    rank, offset = rng.random(TRAIN_POOL)[: len(labels)], rng.integers(1, classes, TRAIN_POOL)[: len(labels)]
    wrong = np.argsort(rank, kind="stable")[: round(noise * len(labels))]
    noisy = labels.copy()
    noisy[wrong] = (labels[wrong] + offset[wrong]) % classes
    return noisy
