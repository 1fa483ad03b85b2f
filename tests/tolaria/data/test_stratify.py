"""Stratified splits: disjoint, deterministic, with the same mixture in each."""

import numpy as np
import pytest

from esper.tolaria.data.splits import stratified_order, stratified_splits

LABELS = np.repeat(np.arange(4), (700, 200, 90, 10)).astype(np.int64)


def test_every_sample_is_in_one_split_and_each_has_the_overall_mixture() -> None:
    parts = stratified_splits(LABELS, (600, 300, 100), seed=1)
    assert [len(part) for part in parts] == [600, 300, 100]
    assert sorted(np.concatenate(parts)) == list(range(1000))
    for part in parts:
        counts = np.bincount(LABELS[part], minlength=4)
        expected = np.array([0.7, 0.2, 0.09, 0.01]) * len(part)
        assert np.abs(counts - expected).max() <= 2


def test_the_same_seed_gives_the_same_splits_and_another_others() -> None:
    first, again = (stratified_splits(LABELS, (500, 500), seed=2)[0] for _ in range(2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, stratified_splits(LABELS, (500, 500), seed=3)[0])


def test_samples_of_a_class_are_shuffled() -> None:
    order = stratified_order(np.zeros(50, np.int64), np.random.default_rng(0))
    assert not np.array_equal(order, np.arange(50))


def test_too_many_samples_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\(900, 101\) need 1001 samples, there are 1000"):
        stratified_splits(LABELS, (900, 101), seed=0)
