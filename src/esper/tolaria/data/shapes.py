"""Drawn pictures: eight small figures, placed at random on a canvas with clutter.

Only element-wise arithmetic in a fixed order: the same to the bit on any machine.
"""

import numpy as np
from numpy.typing import NDArray

from esper.tolaria.data.labelled import TEST, VALIDATION, labelled_data
from esper.tolaria.data.mnist1d import reordering
from esper.tolaria.data.splits import TaskData

SIDE = 12
STAMP = 5

_FIGURES = (
    "..#.. ..#.. ##### ..#.. ..#..",  # a plus
    "#...# .#.#. ..#.. .#.#. #...#",  # a cross
    "##### #...# #...# #...# #####",  # a square
    "..#.. .#.#. #...# .#.#. ..#..",  # a diamond
    "#.... #.... #.... #.... #####",  # an L
    "##### ..#.. ..#.. ..#.. ..#..",  # a T
    "##### ..... ##### ..... #####",  # lines that lie
    "#.#.# #.#.# #.#.# #.#.# #.#.#",  # lines that stand
)
CLASSES = len(_FIGURES)


def figures() -> NDArray[np.float64]:
    """(class, 5, 5) of 0 and 1."""
    return np.array([[[cell == "#" for cell in row] for row in figure.split()] for figure in _FIGURES], float)


def draw(labels: NDArray[np.int64], clutter: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """(sample, 12, 12): each figure somewhere, at a strength of 0.7 to 1.3, on noise of deviation `clutter`."""
    return stamp(figures()[labels], SIDE, clutter, rng)


def stamp(
    inked: NDArray[np.float64], side: int, clutter: float, rng: np.random.Generator
) -> NDArray[np.float64]:
    """(sample, side, side): the same of any figures `inked` (sample, 5, 5), on a canvas of any size."""
    count, places = len(inked), side - STAMP + 1
    top, left = rng.integers(places, size=(2, count))
    strength = rng.uniform(0.7, 1.3, count)
    canvas = clutter * rng.standard_normal((count, side, side))
    rows = top[:, None, None] + np.arange(STAMP)[:, None]  # (sample, 5, 1)
    columns = left[:, None, None] + np.arange(STAMP)  # (sample, 1, 5)
    canvas[np.arange(count)[:, None, None], rows, columns] += strength[:, None, None] * inked
    return canvas


def load_shapes(
    *, classes: int, size: int, noise: float, clutter: float, shuffled: float, permutation: int, data: int
) -> TaskData:
    """Balanced splits; `noise` of the training labels are wrong, `shuffled` of the pixels change places."""
    samples = VALIDATION + TEST + size
    labels = np.arange(samples) % classes
    pictures = draw(labels, clutter, np.random.default_rng([data, classes]))
    order = reordering(shuffled, permutation, SIDE * SIDE)
    pixels = pictures.reshape(samples, -1)[:, order].reshape(samples, 1, SIDE, SIDE).astype(np.float32)
    return labelled_data(pixels, labels, classes=classes, noise=noise, data=data)
