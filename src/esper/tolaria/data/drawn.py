"""Drawn pictures, sequences and functions with their labels or values, cut into splits.

Pictures are eight small figures, placed at random on a canvas with clutter: only element-wise arithmetic in a fixed
order, the same to the bit on any machine. Sequences of tokens are to be told apart by what a text is told apart by:

words   which of some tokens is there most often: order does not matter
pairs   how far each token is from the one before it, most of the time: neighbours matter
recall  which token follows the marker, the only one of its kind: one place matters, wherever it is

Functions of several numbers, to be learned from samples, are sums of terms of one shape, with rounded constants; the
largest of several makes a class. And there are functions of bits, some of which flip slowly.

smooth    t(x) = 1 / (1 + (a x_i + b x_j)^2)
steps     t(x) = 1 where a x_i + b x_j > c, else 0
products  t(x) = x_i x_j
"""

from dataclasses import dataclass
from typing import NamedTuple

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


# Functions


Floats = NDArray[np.float64]

SHAPES = ("smooth", "steps", "products")
TERMS = 8
BITS, UNITS = 20, 100
_AGREEING = 14
"""Bits of 20 that agree with a unit's weights where it is on."""
_JUDGED = 4096
"""Drawn inputs that the mean and the deviation of a function are taken over."""
Ints = NDArray[np.int64]


class Term(NamedTuple):
    """One term: its weight, the two inputs that it reads, how, and its threshold."""

    weight: float
    first: int
    second: int
    a: float
    b: float
    threshold: float


def draw_terms(rng: np.random.Generator, features: int) -> list[Term]:
    """Terms over pairs of different inputs."""
    terms = []
    for _ in range(TERMS):
        first, second = rng.permutation(features)[:2]
        weight, a, b = rng.uniform(0.5, 2.0, 3) * rng.choice((-1.0, 1.0), 3)
        terms.append(Term(weight, int(first), int(second), a, b, float(rng.uniform(-0.5, 0.5))))
    return terms


def value(shape: str, terms: list[Term], inputs: Floats) -> Floats:
    """(sample,): the function at each of `inputs` (sample, feature)."""
    total = np.zeros(len(inputs))
    for term in terms:
        x, y = inputs[:, term.first], inputs[:, term.second]
        ridge = term.a * x + term.b * y
        if shape == "smooth":
            total = total + term.weight / (1.0 + ridge * ridge)
        elif shape == "steps":
            total = total + term.weight * (ridge > term.threshold)
        else:
            total = total + term.weight * (x * y)
    return total


def load_function(*, shape: str, features: int, size: int, noise: float, data: int) -> TaskData:
    """Inputs uniform in -1..1, the function standardised over the training samples.

    noise  deviation of what is added to training targets, in deviations of the function; the others stay clean
    """
    rng = np.random.default_rng([data, features, SHAPES.index(shape)])
    terms = draw_terms(rng, features)
    inputs = rng.uniform(-1.0, 1.0, (VALIDATION + TEST + size, features))
    targets = value(shape, terms, inputs)
    # training last, so that the others stay the same whatever its size
    held_out, tested, known = (
        slice(VALIDATION),
        slice(VALIDATION, VALIDATION + TEST),
        slice(-size, None),
    )
    scale = round(float(targets[known].std()), 9) or 1.0
    targets = (targets - round(float(targets[known].mean()), 9)) / scale
    noisy = targets.copy()
    noisy[known] = noisy[known] + noise * rng.standard_normal(size)

    def split(part: slice, wanted: Floats) -> Split:
        return Split.from_arrays(inputs[part].astype(np.float32), wanted[part, None].astype(np.float32))

    phase = Phase(0, split(known, noisy), split(held_out, targets))
    return TaskData((phase,), SealedTest(split(tested, targets)), classes=1)


def load_largest(*, shape: str, features: int, classes: int, size: int, noise: float, data: int) -> TaskData:
    """Which of several functions is largest, each standardised; `noise` of the training labels are wrong."""
    rng = np.random.default_rng([data, features, SHAPES.index(shape), classes])
    drawn = [draw_terms(rng, features) for _ in range(classes)]
    inputs = rng.uniform(-1.0, 1.0, (VALIDATION + TEST + size, features))
    values = np.stack([value(shape, terms, inputs) for terms in drawn], axis=1)  # (sample, class)
    values = (values - values.mean(axis=0).round(9)) / np.maximum(values.std(axis=0).round(9), 1e-6)
    labels = values.argmax(axis=1)
    return labelled_data(inputs.astype(np.float32), labels, classes=classes, noise=noise, data=data)


@dataclass(frozen=True, slots=True, eq=False)
class BitFunction:
    """A network of threshold units, with values that have mean 0 and deviation 1 over all bits.

    A unit is on where at least 70 % of the bits agree with the signs of its weights; the value is the sum of the
    units that are on, each with a sign (Dohare et al. 2024, "slowly changing regression"). At any time the slow bits
    stand still and the others are drawn anew for each sample, so that a learner which is too small for the whole
    function has to follow it: known ground for losing the ability to learn. Whole numbers throughout: the same to the
    bit on any machine.
    """

    signs: Ints
    """(unit, bit) -1 or 1"""
    outputs: Ints
    """(unit,) -1 or 1"""
    mean: float = 0.0
    deviation: float = 1.0

    @staticmethod
    def drawn(rng: np.random.Generator) -> "BitFunction":
        """A function with signs of its own."""
        raw = BitFunction(rng.choice((-1, 1), (UNITS, BITS)), rng.choice((-1, 1), UNITS))
        values = raw(rng.integers(2, size=(_JUDGED, BITS)))[:, 0].astype(np.float64)
        return BitFunction(raw.signs, raw.outputs, float(values.mean()), float(values.std()))

    def __call__(self, bits: Ints) -> NDArray[np.float32]:
        """(sample, 1): the value at each of `bits` (sample, bit)."""
        agreeing = bits @ self.signs.T + (self.signs < 0).sum(1)  # (sample, unit)
        values = (agreeing >= _AGREEING) @ self.outputs
        scaled: NDArray[np.float32] = ((values - self.mean) / self.deviation).astype(np.float32)
        return scaled[:, None]


def slow_states(slow: int, count: int, rng: np.random.Generator) -> Ints:
    """(state, slow bit): each state is the one before with one bit flipped."""
    flips = rng.integers(slow, size=count)
    flips[0] = 0
    flipped = np.cumsum(np.eye(slow, dtype=np.int64)[flips], axis=0)
    states: Ints = (rng.integers(2, size=slow) + flipped) % 2
    return states


def some_bits(state: Ints, count: int, rng: np.random.Generator) -> Ints:
    """(count, bit): the slow bits as they stand, and the others drawn."""
    drawn = rng.integers(2, size=(count, BITS - len(state)))
    return np.concatenate([np.tile(state, (count, 1)), drawn], axis=1)
