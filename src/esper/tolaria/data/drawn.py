"""Drawn pictures and sequences with their labels, cut into splits.

Pictures are eight small figures, placed at random on a canvas with clutter: only element-wise arithmetic in a fixed
order, the same to the bit on any machine. Sequences of tokens are to be told apart by what a text is told apart by:

words   which of some tokens is there most often: order does not matter
pairs   how far each token is from the one before it, most of the time: neighbours matter
recall  which token follows the marker, the only one of its kind: one place matters, wherever it is
"""

import numpy as np
from numpy.typing import NDArray

from esper.tolaria.data.mnist1d import mislabel, reordering
from esper.tolaria.data.splits import Phase, SealedTest, Split, TaskData

VALIDATION, TEST = 500, 2000


def labelled_data(
    inputs: NDArray[np.float32] | NDArray[np.int64],
    labels: NDArray[np.int64],
    *,
    classes: int,
    noise: float,
    data: int,
) -> TaskData:
    """The first 500 samples validate, 2,000 test, all others are trained on, `noise` of them with wrong labels."""
    held_out, tested = slice(VALIDATION), slice(VALIDATION, VALIDATION + TEST)
    known = slice(VALIDATION + TEST, None)
    train = Split.from_arrays(inputs[known], mislabel(labels[known], noise, classes, data))
    validation = Split.from_arrays(inputs[held_out], labels[held_out])
    test = Split.from_arrays(inputs[tested], labels[tested])
    return TaskData((Phase(0, train, validation),), SealedTest(test), classes)


# Pictures


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
FIGURE_CLASSES = len(_FIGURES)


def figures() -> NDArray[np.float64]:
    """(class, 5, 5) of 0 and 1."""
    return np.array([[[cell == "#" for cell in row] for row in figure.split()] for figure in _FIGURES], float)


def draw_figures(labels: NDArray[np.int64], clutter: float, rng: np.random.Generator) -> NDArray[np.float64]:
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
    pictures = draw_figures(labels, clutter, np.random.default_rng([data, classes]))
    order = reordering(shuffled, permutation, SIDE * SIDE)
    pixels = pictures.reshape(samples, -1)[:, order].reshape(samples, 1, SIDE, SIDE).astype(np.float32)
    return labelled_data(pixels, labels, classes=classes, noise=noise, data=data)


# Sequences


LENGTH, VOCABULARY = 24, 12
RULES = ("words", "pairs", "recall")
MOST_SEQUENCE_CLASSES = 8
_MARKER = VOCABULARY - 1
_ORDINARY = VOCABULARY - 1
"""Tokens but for the marker."""

Tokens = NDArray[np.int64]


def draw_sequences(rule: str, labels: Tokens, rng: np.random.Generator) -> Tokens:
    """(sample, 24): a sequence of each class."""
    if rule == "words":
        return _words(labels, rng)
    return _pairs(labels, rng) if rule == "pairs" else _recall(labels, rng)


def _words(labels: Tokens, rng: np.random.Generator) -> Tokens:
    """Four places more of the class's token than chance gives."""
    tokens = rng.integers(_ORDINARY, size=(len(labels), LENGTH))
    places = rng.random((len(labels), LENGTH)).argsort(axis=1)[:, :4]
    np.put_along_axis(tokens, places, labels[:, None], axis=1)
    return tokens


def _pairs(labels: Tokens, rng: np.random.Generator) -> Tokens:
    """Half of the steps are as long as the class says, the others any."""
    steps = rng.integers(_ORDINARY, size=(len(labels), LENGTH))
    follows = rng.random((len(labels), LENGTH)) < 0.5
    steps = np.where(follows, labels[:, None] + 1, steps)
    return steps.cumsum(axis=1) % _ORDINARY


def _recall(labels: Tokens, rng: np.random.Generator) -> Tokens:
    """The marker somewhere, and behind it the class's token."""
    tokens = rng.integers(_ORDINARY, size=(len(labels), LENGTH))
    place = rng.integers(LENGTH - 1, size=(len(labels), 1))
    np.put_along_axis(tokens, place, _MARKER, axis=1)
    np.put_along_axis(tokens, place + 1, labels[:, None], axis=1)
    return tokens


def load_sequences(*, rule: str, classes: int, size: int, noise: float, data: int) -> TaskData:
    """Balanced splits; `noise` of the training labels are wrong."""
    samples = VALIDATION + TEST + size
    labels = np.arange(samples) % classes
    tokens = draw_sequences(rule, labels, np.random.default_rng([data, classes, RULES.index(rule)]))
    return labelled_data(tokens, labels, classes=classes, noise=noise, data=data)
