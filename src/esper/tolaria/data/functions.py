"""Drawn functions of several numbers, to be learned from samples: sums of terms of one shape. The largest of several
makes a class.

    smooth    t(x) = 1 / (1 + (a x_i + b x_j)^2)
    steps     t(x) = 1 where a x_i + b x_j > c, else 0
    products  t(x) = x_i x_j

Only element-wise arithmetic in a fixed order, and rounded constants: the same to the bit on any machine.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from esper.tolaria.data.labelled import TEST, VALIDATION, labelled_data
from esper.tolaria.data.splits import Phase, SealedTest, Split, TaskData

Floats = NDArray[np.float64]

SHAPES = ("smooth", "steps", "products")
TERMS = 8


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
