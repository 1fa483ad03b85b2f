"""Drawn functions: known values, clean validation, and the same samples everywhere."""

import numpy as np
import pytest

from esper.tolaria.data import drawn
from esper.tolaria.data.drawn import TEST, VALIDATION, Term, load_function, value
from esper.tolaria.data.splits import ReportKey

TERMS = [Term(2.0, 0, 2, 1.0, -1.0, 0.25), Term(-0.5, 1, 0, 0.5, 2.0, 0.0)]
POINTS = np.array([[1.0, 2.0, 0.5], [-1.0, 0.0, 0.0]])


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ("smooth", [2 / 1.25 - 0.5 / 10, 2 / 2 - 0.5 / 5]),  # ridges 0.5 and 3; -1 and -2
        ("steps", [2.0 - 0.5, 0.0]),
        ("products", [2 * 0.5 - 0.5 * 2.0, 0.0]),
    ],
)
def test_known_values(shape: str, expected: list[float]) -> None:
    assert value(shape, TERMS, POINTS) == pytest.approx(expected)


def test_only_training_targets_have_noise() -> None:
    clean, noisy = (
        load_function(shape="smooth", features=5, size=300, noise=noise, data=3) for noise in (0, 1)
    )
    (first,), (second,) = clean.phases, noisy.phases
    assert first.validation.digest() == second.validation.digest()
    assert clean.test.digest() == noisy.test.digest()
    added = (second.train.targets - first.train.targets).double()
    assert added.std().item() == pytest.approx(1.0, abs=0.1)
    assert first.train.targets.mean().item() == pytest.approx(0.0, abs=1e-5)
    assert first.train.variance == pytest.approx(1.0, abs=1e-5)


def test_splits_are_disjoint_and_other_seeds_are_other_functions() -> None:
    one, other = (load_function(shape="steps", features=4, size=200, noise=0.0, data=data) for data in (0, 1))
    splits = (one.phases[0].train, one.phases[0].validation, one.test.open(ReportKey()))
    rows = [tuple(row) for split in splits for row in split.inputs.tolist()]
    assert len(rows) == len(set(rows)) == 200 + VALIDATION + TEST
    assert one.digest() != other.digest()


def test_the_samples_are_pinned() -> None:
    digests = [
        load_function(shape=shape, features=8, size=200, noise=0.1, data=7).digest() for shape in drawn.SHAPES
    ]
    assert digests == PINNED


PINNED = [
    "6acd95b6115f755812b62e72af7cab20",
    "42ad29432f64978a4baa146732654668",
    "7cccc91f74840aa170a4859c935f5bbf",
]
