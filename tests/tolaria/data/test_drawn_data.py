"""Drawn pictures, sequences, tables and functions.

What tells classes apart is there, labels are right, values are known, validation is clean, samples are pinned.
"""

import numpy as np
import pytest

from esper.tolaria.data import TaskData, drawn
from esper.tolaria.data.drawn import TEST, VALIDATION, Term, load_function, load_largest, value
from esper.tolaria.data.splits import ReportKey


def pictures(**changes: object) -> TaskData:
    settings: dict[str, object] = {
        "classes": 8,
        "size": 300,
        "noise": 0.0,
        "clutter": 0.0,
        "shuffled": 0.0,
        "permutation": 0,
        "data": 1,
    }
    return drawn.load_shapes(**(settings | changes))  # type: ignore[arg-type]


def texts(rule: str, **changes: object) -> TaskData:
    settings: dict[str, object] = {"rule": rule, "classes": 5, "size": 300, "noise": 0.0, "data": 1}
    return drawn.load_sequences(**(settings | changes))  # type: ignore[arg-type]


def tables(**changes: object) -> TaskData:
    settings: dict[str, object] = {
        "shape": "smooth",
        "features": 6,
        "classes": 4,
        "size": 300,
        "noise": 0.0,
        "data": 1,
    }
    return load_largest(**(settings | changes))  # type: ignore[arg-type]


def test_a_figure_is_whole_wherever_it_is() -> None:
    train = pictures().phases[0].train
    for picture, label in zip(train.inputs[:40, 0].numpy(), train.targets[:40].tolist(), strict=True):
        rows, columns = picture.any(axis=1).nonzero()[0], picture.any(axis=0).nonzero()[0]
        # an L may be recognised by its box; every figure reaches all four sides of its own
        cut = picture[rows[0] : rows[0] + 5, columns[0] : columns[0] + 5]
        strength = cut.max()
        assert 0.7 <= strength <= 1.3
        assert np.allclose(cut / strength, drawn.figures()[label])
        assert picture.sum() == pytest.approx(cut.sum(), rel=1e-5)


def test_shuffled_pixels_are_the_same_pixels() -> None:
    plain, moved = (pictures(shuffled=share).phases[0].train.inputs for share in (0.0, 1.0))
    assert not plain.equal(moved)
    assert plain.flatten(1).sort(dim=1).values.equal(moved.flatten(1).sort(dim=1).values)


def test_what_tells_sequences_apart() -> None:
    for split in (texts("recall").phases[0].train, texts("recall").phases[0].validation):
        marked = split.inputs == drawn.VOCABULARY - 1
        assert (marked.sum(1) == 1).all()
        behind = split.inputs.gather(1, marked.float().argmax(1, keepdim=True) + 1).squeeze(1)
        assert behind.equal(split.targets)
    pairs = texts("pairs").phases[0].train
    steps = pairs.inputs.diff(dim=1) % (drawn.VOCABULARY - 1)
    share = (steps == pairs.targets[:, None] + 1).float().mean().item()
    assert share == pytest.approx(0.5 + 0.5 / 11, abs=0.03)
    words = texts("words").phases[0].train
    count = (words.inputs == words.targets[:, None]).float().sum(1).mean().item()
    assert count == pytest.approx(4 + 20 / 11, abs=0.2)


def test_every_class_of_a_table_is_there() -> None:
    train = tables().phases[0].train
    assert train.targets.bincount(minlength=4).min() > 20


@pytest.mark.parametrize("load", [pictures, lambda **kw: texts("pairs", **kw), tables])
def test_only_training_labels_are_wrong_and_splits_are_disjoint(load: object) -> None:
    assert callable(load)
    clean, noisy = load(), load(noise=0.4)
    assert clean.phases[0].validation.digest() == noisy.phases[0].validation.digest()
    assert clean.test.digest() == noisy.test.digest()
    wrong = clean.phases[0].train.targets != noisy.phases[0].train.targets
    assert wrong.sum() == round(0.4 * 300)
    assert len(noisy.phases[0].validation) == VALIDATION
    assert len(noisy.test.open(ReportKey())) == TEST
    assert load(data=2).digest() != clean.digest()


def test_the_samples_are_pinned() -> None:
    found = [pictures(clutter=0.3).digest(), *(texts(rule).digest() for rule in drawn.RULES)]
    assert found == PINNED


PINNED = [
    "840416a5610c31da64a5f2efea2b565e",
    "d5529fbc8815bb6faab7e7bffb8f6596",
    "f17a73bcc74e7490812c0a5308ec0510",
    "cf9d88ba112270e238c57a9bafe6b54f",
]


# Functions

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


def test_the_samples_of_functions_are_pinned() -> None:
    digests = [
        load_function(shape=shape, features=8, size=200, noise=0.1, data=7).digest() for shape in drawn.SHAPES
    ]
    assert digests == PINNED_FUNCTIONS


PINNED_FUNCTIONS = [
    "6acd95b6115f755812b62e72af7cab20",
    "42ad29432f64978a4baa146732654668",
    "7cccc91f74840aa170a4859c935f5bbf",
]
