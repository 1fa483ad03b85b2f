"""Data in a node's object store: the same to the bit, never copied, without test splits, and not needed to go on."""

import logging
from collections.abc import Iterator

import pytest
import torch

from esper.tolaria.data import TaskData
from esper.tolaria.tasks import Instance
from esper.tolaria.tasks.instance import give

ray = pytest.importorskip("ray")
from ray.exceptions import GetTimeoutError, ObjectLostError  # noqa: E402

from esper.tolaria.worlds.cluster import actor  # noqa: E402

ONE, SEVERAL = "digits", "shift"


@pytest.fixture(autouse=True)
def nothing_given() -> Iterator[None]:
    yield
    give({})


def through_the_store(case: str) -> tuple[actor.WrittenData, TaskData]:
    written = actor.write_data(case)
    assert written is not None
    for inputs, targets in written.splits:
        inputs.flags.writeable = targets.flags.writeable = False  # as Ray maps them
    return written, actor.read_data(case, written)


@pytest.mark.parametrize("case", [ONE, SEVERAL])
@pytest.mark.filterwarnings("error")
def test_data_come_back_to_the_bit_without_a_copy(case: str) -> None:
    ours = Instance.parse(case).load()
    written, data = through_the_store(case)
    assert data.digest() == ours.digest()  # of the test splits too, which are loaded for it
    assert [each.start_epoch for each in data.phases] == [each.start_epoch for each in ours.phases]
    first = data.phases[0].train
    assert (
        first.inputs.data_ptr() == written.splits[0][0].ctypes.data == ours.phases[0].train.inputs.data_ptr()
    )


def test_test_splits_are_not_written() -> None:
    data = Instance.parse(ONE).load()
    written, back = through_the_store(ONE)
    samples = sum(len(inputs) for inputs, _ in written.splits)
    assert samples == len(data.phases[0].train) + len(data.phases[0].validation)
    assert len(back.test) == len(data.test)


def test_a_state_that_returns_is_written_once() -> None:
    data = Instance.parse(ONE).load()
    phase = data.phases[0]
    twice = TaskData((phase, type(phase)(3, phase.train, phase.validation)), data.test, data.classes)
    give({Instance.parse(ONE): twice})
    written, back = through_the_store(ONE)
    assert len(written.splits) == 2
    assert back.phases[0].train is back.phases[1].train


def test_what_is_no_task_or_cannot_be_loaded_is_left_to_the_beginning() -> None:
    assert actor.write_data("nothing:of=this") is None
    assert actor.write_data("tabular:path=/nowhere.csv") is None


def test_given_data_are_what_an_instance_loads() -> None:
    instance = Instance.parse(ONE)
    _, data = through_the_store(ONE)
    give({instance: data})
    assert instance.load() is data
    give({})
    assert instance.load() is not data
    assert torch.equal(instance.load().phases[0].train.inputs, data.phases[0].train.inputs)


@pytest.mark.parametrize("error", [GetTimeoutError("slow"), ObjectLostError("0" * 56, None, "")])
def test_a_worker_loads_for_itself_what_it_cannot_have(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    def raising(_: object, timeout: float) -> None:
        assert timeout == actor.DATA_PATIENCE_SECONDS
        raise error

    monkeypatch.setattr(ray, "get", raising)
    with caplog.at_level(logging.WARNING, "esper.cluster"):
        actor.take_data({ONE: [None]})  # type: ignore[list-item]
    assert f"the data of {ONE} are loaded by this worker too: {type(error).__name__}" in caplog.text
    assert len(Instance.parse(ONE).load().phases) == 1
