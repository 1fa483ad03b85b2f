"""Splits, phases and the sealed test."""

import copy
import io
import math
import pickle
from collections.abc import Callable

import pytest
import torch

from esper.tolaria.data import Phase, SealedTest, Split, TaskData
from esper.tolaria.data.splits import ReportKey, SealedElsewhere


def a_split(count: int = 7, classes: int = 3, seed: int = 0) -> Split:
    generator = torch.Generator().manual_seed(seed)
    return Split(
        torch.randn(count, 5, generator=generator), torch.randint(0, classes, (count,), generator=generator)
    )


def some_data() -> TaskData:
    targets = torch.tensor([2, 0, 2, 2, 1])
    validation = Split(torch.zeros(5, 5), targets)
    at_first = Split(torch.zeros(5, 5), torch.tensor([0, 1, 2, 1, 0]))
    return TaskData((Phase(0, a_split(), at_first), Phase(4, a_split(11), validation)), _sealed(), 3)


def _sealed() -> SealedTest:
    return SealedTest(a_split(13, seed=2))


def test_chance_and_untrained_loss_are_of_the_last_phase() -> None:
    data = some_data()
    assert data.phases[-1].validation.commonest_share == pytest.approx(3 / 5)
    assert data.untrained_loss == pytest.approx(math.log(3))


@pytest.mark.parametrize(
    ("inputs", "targets", "said"),
    [
        (torch.zeros(3, 2, dtype=torch.float64), torch.zeros(3, dtype=torch.int64), "inputs.*float64"),
        (torch.zeros(3, 2), torch.zeros(3, dtype=torch.int32), "targets.*int32"),
        (torch.zeros(3, 2), torch.zeros(3), r"\(sample, quantity\).*shape \(3,\)"),
        (torch.zeros(2, 2), torch.tensor([[1.0], [torch.nan]]), "1 of them not finite"),
        (torch.zeros(3, 2), torch.zeros(4, dtype=torch.int64), "3 inputs and 4 targets"),
        (torch.zeros(0, 2), torch.zeros(0, dtype=torch.int64), "0 inputs"),
    ],
)
def test_a_split_refuses_what_it_cannot_be(inputs: torch.Tensor, targets: torch.Tensor, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Split(inputs, targets)


def quantities(*values: float) -> Split:
    return Split(torch.zeros(len(values), 5), torch.tensor(values, dtype=torch.float32).unsqueeze(1))


def test_quantities_are_known_by_their_variance() -> None:
    data = TaskData((Phase(0, quantities(1, 5), quantities(0, 1, 2)),), SealedTest(quantities(3, 4)), 1)
    assert data.regression
    assert data.untrained_loss == 4.0
    assert data.phases[0].validation.variance == pytest.approx(2 / 3)
    halves = data.phases[0].validation.halves()
    assert sorted(len(half) for half in halves) == [1, 2]
    assert not some_data().regression


def test_task_data_refuses_quantities_that_cannot_be_predicted() -> None:
    with pytest.raises(ValueError, match="validation targets never vary"):
        TaskData((Phase(0, quantities(1, 5), quantities(2, 2)),), SealedTest(quantities(3, 4)), 1)
    with pytest.raises(ValueError, match="train targets have 1 quantities, not 2"):
        TaskData((Phase(0, quantities(1, 5), quantities(2, 3)),), SealedTest(quantities(3, 4)), 2)
    with pytest.raises(ValueError, match=r"validation targets are torch.int64"):
        TaskData((Phase(0, quantities(1, 5), a_split()),), SealedTest(quantities(3, 4)), 1)


def test_task_data_refuses_other_phases_and_targets() -> None:
    with pytest.raises(ValueError, match=r"start at 0.*\[3\]"):
        TaskData((Phase(3, a_split(), a_split()),), _sealed(), 3)
    with pytest.raises(ValueError, match=r"\[0, 5, 5\]"):
        TaskData(tuple(Phase(start, a_split(), a_split()) for start in (0, 5, 5)), _sealed(), 3)
    with pytest.raises(ValueError, match=r"train targets must be 0\.\.1, not \d\.\.2"):
        TaskData((Phase(0, a_split(), a_split(classes=2)),), _sealed(), 2)
    with pytest.raises(ValueError, match="classes must be at least 2, not 1"):
        TaskData((Phase(0, a_split(), a_split()),), _sealed(), 1)


def test_the_digest_follows_every_part_of_the_data() -> None:
    data = some_data()
    assert data.digest() == some_data().digest()
    first, second = data.phases
    others = (
        TaskData((first,), data.test, 3),
        TaskData((first, Phase(5, second.train, second.validation)), data.test, 3),
        TaskData(data.phases, SealedTest(a_split(13, seed=3)), 3),
        TaskData(data.phases, data.test, 4),
    )
    assert len({data.digest(), *(other.digest() for other in others)}) == 5


def test_moving_keeps_values_and_the_seal() -> None:
    data = some_data()
    moved = data.to("cpu")
    assert moved.digest() == data.digest()
    assert (moved.classes, len(moved.test)) == (3, 13)


def test_a_sealed_test_opens_with_a_report_key_only() -> None:
    sealed = _sealed()
    for key in (None, ReportKey, "key"):
        with pytest.raises(TypeError, match="opens with a ReportKey"):
            sealed.open(key)  # type: ignore[arg-type]
    assert sealed.openings == 0
    assert len(sealed.open(ReportKey())) == len(sealed) == 13
    assert sealed.openings == 1
    assert sealed.to("cpu").openings == 1


def test_a_sealed_test_shows_gives_and_writes_nothing() -> None:
    sealed = _sealed()
    assert repr(sealed) == "SealedTest(13 samples, opened 0 times)"
    attempts: tuple[Callable[[], object], ...] = (
        lambda: list(sealed),
        lambda: sealed[0],  # type: ignore[index]
        lambda: pickle.dumps(sealed),
        lambda: pickle.dumps(some_data()),
        lambda: torch.save(sealed, io.BytesIO()),
    )
    for attempt in attempts:
        with pytest.raises(TypeError):
            attempt()
    assert not hasattr(sealed, "__dict__")


def test_copies_stay_sealed() -> None:
    data = some_data()
    for twin in (copy.deepcopy(data.test), copy.copy(data.test), copy.deepcopy(data).test):
        assert type(twin) is SealedTest
        assert twin is not data.test
        assert twin.digest() == data.test.digest()
        with pytest.raises(TypeError):
            twin.open(object())  # type: ignore[arg-type]


@pytest.mark.parametrize("samples", [2, 47, 1000])
def test_halves_are_two_fixed_parts_of_a_split(samples: int) -> None:
    labels = torch.arange(samples) % 5
    split = Split(torch.arange(samples, dtype=torch.float32)[:, None], labels)
    first, second = split.halves()
    assert len(first) + len(second) == samples
    assert 0 <= len(first) - len(second) <= 1
    assert sorted(torch.cat((first.inputs, second.inputs)).flatten().tolist()) == list(range(samples))
    assert [half.digest() for half in split.halves()] == [first.digest(), second.digest()]
    if samples == 1000:  # both with the mixture of the whole
        assert all((torch.bincount(half.targets) - 100).abs().max() <= 2 for half in (first, second))


def test_halves_of_text_and_of_too_little() -> None:
    text = Split(torch.arange(60).view(10, 6), torch.arange(60).view(10, 6))
    assert [len(half) for half in text.halves()] == [5, 5]
    with pytest.raises(ValueError, match="1 sample has no halves"):
        Split(torch.zeros(1, 3), torch.zeros(1, dtype=torch.int64)).halves()


def test_a_test_split_that_is_elsewhere_is_loaded_for_the_report_alone_and_counted() -> None:
    loads: list[int] = []

    def load() -> SealedTest:
        loads.append(1)
        return _sealed()

    sealed = SealedElsewhere(load)
    assert (repr(sealed), sealed.openings, loads) == ("SealedElsewhere(opened 0 times)", 0, [])
    assert len(sealed.open(ReportKey())) == 13
    with pytest.raises(TypeError, match="opens with a ReportKey"):
        sealed.open("key")  # type: ignore[arg-type]
    assert (sealed.openings, copy.deepcopy(sealed).openings) == (1, 1)
