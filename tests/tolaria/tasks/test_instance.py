"""Instances as values: text, equality, checks, cache and fingerprint."""

import os
import string
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn

from esper.kasmina.hosts import ConvNet
from esper.tolaria.data import TaskData
from esper.tolaria.tasks import Instance, OptimiserSpec, ParameterError, Task, forget, register, task
from esper.tolaria.tasks.instance import _source
from fake_datasets import write_csv, write_text


def test_the_text_form_is_canonical() -> None:
    text = "mnist1d:noise=0.2,permutation=3,shuffled=1.0,size=1000"
    assert str(Instance.parse("mnist1d:size=1000,shuffled=1,permutation=3,noise=.2")) == text
    assert str(Instance.parse(text)) == text
    assert Instance.of("mnist1d", {"size": 1000, "noise": 0.2}) == Instance.parse(
        "mnist1d:noise=0.2,size=1000"
    )


def test_parameters_at_their_defaults_are_left_out() -> None:
    assert Instance.parse("mnist1d:size=4000,noise=0,classes=10") == Instance("mnist1d")
    assert hash(Instance.parse("mnist1d:noise=0.0")) == hash(Instance("mnist1d"))
    assert str(Instance("mnist1d")) == "mnist1d"


@given(
    size=st.integers(500, 4000),
    noise=st.floats(0, 0.4),
    shuffled=st.floats(0, 1),
    permutation=st.integers(0, 2**63 - 1),
    classes=st.integers(2, 10),
)
def test_parsing_inverts_writing(
    size: int, noise: float, shuffled: float, permutation: int, classes: int
) -> None:
    instance = Instance.of(
        "mnist1d",
        {"size": size, "noise": noise, "shuffled": shuffled, "permutation": permutation, "classes": classes},
    )
    assert Instance.parse(str(instance)) == instance


@example("50%41,%2C")
@given(st.text(string.printable + "é,%=:", min_size=1))
def test_any_path_can_be_written_down(path: str) -> None:
    instance = Instance.of("text", {"path": path, "context": 8})
    assert Instance.parse(str(instance)) == instance
    assert dict(instance.parameters)["path"] == path


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nothing", "no task is named 'nothing'; there are digits"),
        ("mnist1d:", "ends after the colon"),
        ("mnist1d:size", "'size' in 'mnist1d:size' must be parameter=value"),
        ("mnist1d:size=1000,", "must be parameter=value"),
        ("mnist1d:colour=3", "no parameter 'colour'; it has size, noise, shuffled"),
        ("digits:size=3", "task 'digits' has no parameter 'size'; it has none"),
        ("mnist1d:size=499", "mnist1d.size must be a whole number from 500 to 4000, not 499"),
        ("mnist1d:size=1e3", "mnist1d.size must be .*, not '1e3'"),
        ("mnist1d:noise=0.41", "mnist1d.noise must be a number from 0 to 0.4, not 0.41"),
        ("mnist1d:noise=nan", "mnist1d.noise must be"),
        ("mnist1d:classes=1", "mnist1d.classes must be a whole number from 2 to 10, not 1"),
        ("mnist1d:size=1000,size=2000", "given twice"),
        ("tabular", "task 'tabular' needs path"),
        ("text:path=", "text.path must be the path of a file, not ''"),
        ("shift:kind=weather", "shift.kind must be one of shuffle, classes, noise, not 'weather'"),
        ("shift:change=24", "shift.change must be a whole number from 1 to 23, not 24"),
        ("shift:kind=shuffle", "shift.shuffled must be at least 0.05 with kind=shuffle.* it is 0.0"),
        ("shift:kind=noise", "shift.noise must be above 0 with kind=noise.* it is 0.0"),
        (
            "shift:kind=noise,noise=0.2,classes=4",
            "shift.classes is read with kind=classes only, and kind is noise",
        ),
    ],
)
def test_what_is_wrong_is_said_when_the_instance_is_made(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Instance.parse(text)


def test_loading_twice_gives_the_same_object() -> None:
    instance = Instance.parse("mnist1d:size=600")
    assert instance.load() is Instance.parse("mnist1d:size=600").load()
    for size in range(601, 611):
        Instance.of("mnist1d", {"size": size}).load()
    again = instance.load()  # the cache is small
    assert again.digest() == instance.load().digest()


def test_a_file_that_changed_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    write_text(path, seed=0)
    instance = Instance.of("text", {"path": str(path), "context": 16})
    first = instance.load()
    assert instance.load() is first
    write_text(path, seed=1)
    os.utime(path, ns=(1, 1))
    assert instance.load().digest() != first.digest()


def test_fewer_samples_than_a_batch_are_refused(tmp_path: Path) -> None:
    write_csv(tmp_path / "t.csv", rows=80)
    with pytest.raises(
        ParameterError, match=r"56 training samples \(from epoch 0\) do not fill one batch of 64"
    ):
        Instance.of("tabular", {"path": str(tmp_path / "t.csv")}).load()


def wide_host(data: TaskData) -> nn.Module:
    return ConvNet(1, data.classes, dims=1, widths=(8, 16, 17), pools=(1, 2, 2))


def host_of(data: TaskData, last: int) -> nn.Module:
    return ConvNet(1, data.classes, dims=1, widths=(8, 16, last), pools=(1, 2, 2))


@pytest.fixture
def rows() -> dict[str, Task]:
    plain = task("mnist1d")
    return {
        "plain": replace(plain, name="variant"),
        "again": replace(plain, name="variant"),
        "host": replace(plain, name="variant", host=wide_host),
        "partial": replace(plain, name="variant", host=partial(host_of, last=16)),
        "optimiser": replace(plain, name="variant", optimiser=OptimiserSpec(lr=6e-3)),
        "rent": replace(plain, name="variant", rent=0.02),
        "slots": replace(plain, name="variant", slots=("blocks.0",)),
        "data": replace(plain, name="variant", load=lambda _: task("mnist1d").data({"data": 1})),
        "summary": replace(plain, name="variant", summary="said in other words"),
    }


def fingerprint(row: Task, text: str = "variant") -> str:
    register(row)
    try:
        return Instance.parse(text).fingerprint()
    finally:
        forget("variant")


def test_the_fingerprint_follows_everything_that_determines_the_numbers(rows: dict[str, Task]) -> None:
    prints = {name: fingerprint(row) for name, row in rows.items()}
    assert prints["again"] == prints["summary"] == prints["plain"]
    different = {name: made for name, made in prints.items() if name not in ("again", "summary")}
    assert len(set(different.values())) == len(different)
    assert fingerprint(rows["plain"], "variant:size=500") != prints["plain"]
    assert fingerprint(rows["partial"]) == prints["partial"]


def test_code_is_described_without_addresses() -> None:
    class Builder:
        def __call__(self, data: TaskData) -> nn.Module:
            return wide_host(data)

    for code in (wide_host, partial(host_of, last=16), Builder(), ConvNet):
        assert "0x" not in _source(code)
    assert "last" in _source(partial(host_of, last=16))


def test_a_fingerprint_moves_nobodys_randomness() -> None:
    before = torch.get_rng_state()
    Instance("mnist1d").fingerprint()
    assert torch.equal(torch.get_rng_state(), before)
