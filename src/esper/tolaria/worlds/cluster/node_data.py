"""Data of task instances in a node's object store: one copy a node, which all of its workers read.

The worker that needs an instance first writes its data there, and Ray brings them to each other node once. A sealed
test split is never written.
"""

import logging
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import ray
import torch
from numpy.typing import NDArray
from ray.exceptions import RayError

from esper.tolaria.data import Phase, SealedTest, Split, TaskData
from esper.tolaria.data.splits import SealedElsewhere
from esper.tolaria.tasks import Instance, all_tasks
from esper.tolaria.tasks.instance import give

PATIENCE_SECONDS = 120.0
"""How long a worker waits for data that another one writes, before it loads them for itself."""
_LOG = logging.getLogger("esper.cluster")
Array = NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class WrittenData:
    """The data of an instance as arrays, which Ray keeps outside of Python and maps into every process."""

    splits: tuple[tuple[Array, Array], ...]
    """Inputs and targets of each training or validation split."""
    phases: tuple[tuple[int, int, int, bool], ...]
    """Start epoch, numbers of the training and of the validation split, whether the phase has a test of its own."""
    classes: int


def write(case: str) -> WrittenData | None:
    """The data of a case; None if it is no task's, or cannot be loaded, which its beginning will report."""
    if case.partition(":")[0] not in {row.name for row in all_tasks()}:
        return None
    try:
        data = Instance.parse(case).load()
    except Exception:  # raised again where the host is begun
        return None
    splits = [split for phase in data.phases for split in (phase.train, phase.validation)]
    distinct = list({id(split): split for split in splits}.values())  # a state of a stream may return
    number = {id(split): place for place, split in enumerate(distinct)}
    return WrittenData(
        tuple((split.inputs.numpy(), split.targets.numpy()) for split in distinct),
        tuple(
            (each.start_epoch, number[id(each.train)], number[id(each.validation)], each.test is not None)
            for each in data.phases
        ),
        data.classes,
    )


def read(case: str, written: WrittenData) -> TaskData:
    """The same data without a copy; test splits are loaded when they are opened."""
    instance = Instance.parse(case)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # nobody writes into data
        splits = [Split(torch.from_numpy(x), torch.from_numpy(y)) for x, y in written.splits]
    phases = tuple(
        Phase(start, splits[train], splits[validation], _sealed(instance, place) if tested else None)
        for place, (start, train, validation, tested) in enumerate(written.phases)
    )
    return TaskData(phases, _sealed(instance, None), written.classes)


def take(refs: "Mapping[str, list[ray.ObjectRef[WrittenData | None]]]") -> None:
    """Use these data in this process, case by case; what cannot be had it will load for itself."""
    taken = {}
    for case, (ref,) in refs.items():
        try:
            written = ray.get(ref, timeout=PATIENCE_SECONDS)
        except RayError as error:  # its writer died, or there is no room; GetTimeoutError is one too
            _LOG.warning("the data of %s are loaded by this worker too: %s", case, type(error).__name__)
            continue
        if written is not None:
            taken[Instance.parse(case)] = read(case, written)
    give(taken)


def _sealed(instance: Instance, phase: int | None) -> SealedTest:
    return SealedElsewhere(partial(_load_test, instance, phase))


def _load_test(instance: Instance, phase: int | None) -> SealedTest:
    data = instance.load_anew()
    test = data.test if phase is None else data.phases[phase].test
    assert test is not None
    return test
