"""Drawn sequences of tokens, to be told apart by what a text is told apart by.

words   which of some tokens is there most often: order does not matter
pairs   how far each token is from the one before it, most of the time: neighbours matter
recall  which token follows the marker, the only one of its kind: one place matters, wherever it is
"""

import numpy as np
from numpy.typing import NDArray

from esper.tolaria.data.labelled import TEST, VALIDATION, labelled_data
from esper.tolaria.data.splits import TaskData

LENGTH, VOCABULARY = 24, 12
RULES = ("words", "pairs", "recall")
MOST_CLASSES = 8
_MARKER = VOCABULARY - 1
_ORDINARY = VOCABULARY - 1
"""Tokens but for the marker."""

Tokens = NDArray[np.int64]


def draw(rule: str, labels: Tokens, rng: np.random.Generator) -> Tokens:
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
    tokens = draw(rule, labels, np.random.default_rng([data, classes, RULES.index(rule)]))
    return labelled_data(tokens, labels, classes=classes, noise=noise, data=data)
