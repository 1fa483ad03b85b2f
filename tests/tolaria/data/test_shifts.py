"""What may happen to samples: each shift does what its name says, to all splits alike, and is pinned."""

import numpy as np
import pytest

from esper.tolaria.data.splits import ReportKey, TaskData
from esper.tolaria.data.targets import (
    FAMILIES,
    SHIFTS,
    names_of_classes,
    shift_inputs,
    source_split,
    target_data,
)

PICTURE = np.arange(9.0).reshape(1, 3, 3)


def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def target(family: str = "pictures", **changes: object) -> TaskData:
    settings: dict[str, object] = {"shift": "none", "amount": 0.5, "size": 120, "noise": 0.0, "data": 3}
    return target_data(family, **(settings | changes))  # type: ignore[arg-type]


def test_known_answers_of_geometry() -> None:
    quarter = shift_inputs(PICTURE, "turn", 0.5, rng())
    np.testing.assert_allclose(quarter[0], np.rot90(PICTURE[0], -1), atol=1e-9)
    np.testing.assert_allclose(
        shift_inputs(PICTURE, "turn", 1.0, rng())[0], PICTURE[0, ::-1, ::-1], atol=1e-9
    )
    np.testing.assert_array_equal(shift_inputs(PICTURE, "mirror", 1.0, rng()), PICTURE[:, :, ::-1])
    series = np.array([[0.0, 1.0, 2.0, 3.0, 4.0]])
    np.testing.assert_allclose(shift_inputs(series, "stretch", 1.0, rng()), [[1.0, 1.5, 2.0, 2.5, 3.0]])
    corner = shift_inputs(np.ones((1, 3, 3)), "turn", 0.25, rng())[0, 0, 0]
    assert 0.0 < corner < 0.7  # what lies outside reads 0


def test_known_answers_of_inputs() -> None:
    series = np.array([[1.0, 3.0], [5.0, 3.0]])
    np.testing.assert_allclose(shift_inputs(series, "contrast", 0.5, rng()), [[2.0, 3.0], [4.0, 3.0]])
    np.testing.assert_allclose(shift_inputs(series, "contrast", 2.0, rng()), [[5.0, 3.0], [1.0, 3.0]])
    peak = np.zeros((1, 41))
    peak[0, 20] = 1.0
    blurred = shift_inputs(peak, "blur", 2.0, rng())[0]
    assert blurred.sum() == pytest.approx(1.0)
    assert blurred[22] / blurred[20] == pytest.approx(np.exp(-0.5))
    loud = shift_inputs(np.tile([-2.0, 2.0], (500, 50)), "noise", 0.5, rng())
    assert (loud - np.tile([-2.0, 2.0], (500, 50))).std() == pytest.approx(1.0, rel=0.02)


def test_shuffled_positions_are_the_same_positions_of_every_sample() -> None:
    moved = shift_inputs(np.stack([PICTURE[0], 10 * PICTURE[0]]), "shuffle", 1.0, rng())
    np.testing.assert_array_equal(moved[1], 10 * moved[0])
    assert sorted(moved[0].flat) == list(range(9))
    assert not (moved[0] == PICTURE[0]).any()


def test_names_of_classes() -> None:
    assert names_of_classes("noise", 4, rng()).tolist() == [0, 1, 2, 3]
    renamed = names_of_classes("rename", 10, rng())
    assert sorted(renamed) == list(range(10))
    assert not (renamed == np.arange(10)).any()
    assert np.bincount(names_of_classes("merge", 10, rng())).tolist() == [2] * 5


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("shift", SHIFTS)
def test_a_target_has_its_sizes_and_shapes(family: str, shift: str) -> None:
    if shift == "turn" and family == "series":
        return
    data = target(family, shift=shift)
    phase, test = data.phases[0], data.test.open(ReportKey())
    assert len(phase.train) == 120
    assert all(split.inputs.shape[1:] == FAMILIES[family].sample for split in (phase.train, test))
    assert data.classes == FAMILIES[family].classes
    samples = [
        each.numpy().tobytes() for split in (phase.train, phase.validation, test) for each in split.inputs
    ]
    assert len(set(samples)) == len(samples)
    clean = target(family)
    assert clean.digest() == target(family).digest()
    assert (data.digest() == clean.digest()) == (shift == "none")


def test_every_split_is_shifted_alike() -> None:
    clean, moved = (target(shift=shift, amount=1.0) for shift in ("none", "shuffle"))
    order = None
    for split, other in (
        (clean.phases[0].train, moved.phases[0].train),
        (clean.phases[0].validation, moved.phases[0].validation),
        (clean.test.open(ReportKey()), moved.test.open(ReportKey())),
    ):
        before, after = split.inputs[0].flatten().tolist(), other.inputs[0].flatten().tolist()
        found = [before.index(value) for value in after]
        order = order or found
        assert found == order


@pytest.mark.parametrize("shift", ["rename", "merge", "none"])
def test_wrong_labels_are_in_training_alone_and_as_many_as_asked_for(shift: str) -> None:
    clean, noisy = (target("digits", noise=share, shift=shift) for share in (0.0, 0.25))
    assert int((clean.phases[0].train.targets != noisy.phases[0].train.targets).sum()) == 30
    assert clean.phases[0].validation.digest() == noisy.phases[0].validation.digest()
    assert clean.test.digest() == noisy.test.digest()


def test_no_target_has_a_digit_that_bases_learn() -> None:
    data = target("digits", size=500)
    learned = {each.numpy().tobytes() for each in source_split("digits", 0, 0).inputs}
    splits = (data.phases[0].train, data.phases[0].validation, data.test.open(ReportKey()))
    assert not learned & {each.numpy().tobytes() for split in splits for each in split.inputs}
