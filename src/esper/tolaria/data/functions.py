"""Drawn functions of several numbers, to be learned from samples: sums of terms of one shape. The largest of several
makes a class. And functions of bits, some of which flip slowly.

    smooth    t(x) = 1 / (1 + (a x_i + b x_j)^2)
    steps     t(x) = 1 where a x_i + b x_j > c, else 0
    products  t(x) = x_i x_j

Only element-wise arithmetic in a fixed order, and rounded constants: the same to the bit on any machine.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from esper.tolaria.data.drawn import TEST, VALIDATION, labelled_data
from esper.tolaria.data.splits import Phase, SealedTest, Split, TaskData

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
