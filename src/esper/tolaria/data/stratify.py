"""Splits with the same mixture of classes in each."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def stratified_order(labels: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """A random order of the samples in which every stretch has the classes in nearly their overall shares.

    Each class is shuffled and laid out evenly over 0..1; the samples are then taken in the order of those places.
    """
    place = np.empty(len(labels))
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        # The offset keeps rare classes from all sitting at the same place.
        place[members] = (np.arange(len(members)) + rng.random()) / len(members)
    return np.argsort(place, kind="stable")


def stratified_splits(labels: NDArray[np.int64], sizes: Sequence[int], seed: int) -> list[NDArray[np.int64]]:
    """Disjoint index arrays of the given sizes."""
    if sum(sizes) > len(labels):
        raise ValueError(f"splits of {tuple(sizes)} need {sum(sizes)} samples, there are {len(labels)}")
    order = stratified_order(labels, np.random.default_rng(seed))
    return list(np.split(order, np.cumsum(sizes)))[: len(sizes)]
