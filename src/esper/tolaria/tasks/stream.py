"""MNIST-1D that keeps changing while a host lives on it: several changes, at unknown times, under a cap."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from esper.tolaria.data import Phase, SealedTest, Split, TaskData, mnist1d
from esper.tolaria.tasks.changes import CHANGES, DataState, changed
from esper.tolaria.tasks.plans import states
from esper.tolaria.tasks.series import MNIST1D, MNIST1D_PARAMETERS
from esper.tolaria.tasks.task import Parameter, ParameterSpec

EPOCHS = 100
PLAN = "shuffle@16/labels@30/alarm@40/return0@48/classes6@60/noise30@70"
CAP = 1.5
_ALARM_NOISE = 2.0
"""Deviation of the noise on validation during an alarm, over that of the data."""

STREAM_PARAMETERS: Mapping[str, ParameterSpec] = {
    **MNIST1D_PARAMETERS,
    "size": replace(MNIST1D_PARAMETERS["size"], doc="training samples before the first change"),
    "noise": replace(
        MNIST1D_PARAMETERS["noise"], doc="share of training labels that are wrong before the first change"
    ),
    "shuffled": replace(
        MNIST1D_PARAMETERS["shuffled"],
        doc="share of the 40 positions that have changed places before the first change",
    ),
    "permutation": replace(
        MNIST1D_PARAMETERS["permutation"],
        doc="seed of which positions go where, and of what changes draw anew",
    ),
    "classes": replace(
        MNIST1D_PARAMETERS["classes"], doc="only the first so many digits before the first change"
    ),
    "plan": ParameterSpec(
        kind="str",
        default=PLAN,
        doc="the changes as kind@epoch between slashes: shuffle<percent>, labels, classes<n>, samples<n>, "
        "noise<percent>, corrupt<percent>, return<n>, alarm",
    ),
    "cap": ParameterSpec(
        kind="float",
        default=CAP,
        low=0.0,
        high=10.0,
        doc="parameters that may be added, over those of the host",
    ),
}


def phases_of(parameters: Mapping[str, Parameter]) -> list[tuple[int, DataState]]:
    """(start epoch, state of the data) of every phase."""
    first = DataState(
        shuffled=float(parameters["shuffled"]),
        permutation=int(parameters["permutation"]),
        classes=int(parameters["classes"]),
        samples=int(parameters["size"]),
        noise=float(parameters["noise"]),
    )
    return states(first, CHANGES.parse(str(parameters["plan"])), changed, seed=int(parameters["permutation"]))


def check_stream(parameters: Mapping[str, Parameter]) -> None:
    phases_of(parameters)


def load_stream(parameters: Mapping[str, Parameter]) -> TaskData:
    """The head has 10 outputs throughout; each phase has a test split of its own. Equal states share their splits."""
    data = int(parameters["data"])
    pool = mnist1d.pool(data, mnist1d.CLASSES)
    known: dict[DataState, Phase] = {}
    phases = []
    for start, state in phases_of(parameters):
        if state not in known:
            calm = known.get(replace(state, alarm=0))
            known[state] = _phase(pool, state, data) if calm is None else _alarmed(calm, state.alarm)
        phases.append(replace(known[state], start_epoch=start))
    last = phases[-1].test
    assert last is not None
    return TaskData(tuple(phases), last, mnist1d.CLASSES)


def _phase(pool: mnist1d.Pool, state: DataState, data: int) -> Phase:
    order = mnist1d.reordering(state.shuffled, state.permutation)
    series = pool.series[:, None, order]  # (sample, 1, 40), a copy
    series[:, :, _some_positions(state.corrupted, state.corruption)] = 0.0
    names = _names(state.naming)
    known = pool.labels < state.classes
    train = _some_samples(state.samples, state.sampling)
    train = train[known[train]]
    validation, test = (
        np.flatnonzero(known[part]) + part.start
        for part in (
            slice(mnist1d.TRAIN_POOL, mnist1d.TRAIN_POOL + mnist1d.VALIDATION),
            slice(mnist1d.TRAIN_POOL + mnist1d.VALIDATION, len(known)),
        )
    )
    noisy = mnist1d.mislabel(pool.labels[train], state.noise, state.classes, data)
    return Phase(
        0,
        Split.from_arrays(series[train], names[noisy]),
        Split.from_arrays(series[validation], names[pool.labels[validation]]),
        SealedTest(Split.from_arrays(series[test], names[pool.labels[test]])),
    )


def _alarmed(calm: Phase, seed: int) -> Phase:
    """The same data, and noise on what validation is measured with."""
    inputs = calm.validation.inputs.numpy()
    noise = np.random.default_rng([seed, 2]).standard_normal(inputs.shape).astype(np.float32)
    disturbed = Split.from_arrays(inputs + _ALARM_NOISE * noise, calm.validation.targets.numpy())
    return replace(calm, validation=disturbed)


def _some_samples(count: int, seed: int) -> NDArray[np.int64]:
    """(count,) places in the training pool; the first ones, but for another seed than 0."""
    pool = np.arange(mnist1d.TRAIN_POOL)
    return pool[:count] if seed == 0 else np.random.default_rng([seed, 3]).permutation(pool)[:count]


def _some_positions(share: float, seed: int) -> NDArray[np.int64]:
    chosen = np.random.default_rng([seed, 1]).permutation(mnist1d.POSITIONS)
    return chosen[: round(share * mnist1d.POSITIONS)]


def _names(seed: int) -> NDArray[np.int64]:
    """(class,) the output that stands for each class. No class keeps its name, but for seed 0."""
    outputs = np.arange(mnist1d.CLASSES)
    if seed == 0:
        return outputs
    cycle = np.random.default_rng([seed, 0]).permutation(mnist1d.CLASSES)
    outputs[cycle] = np.roll(cycle, 1)
    return outputs


ROWS = (
    replace(
        MNIST1D,
        name="stream",
        summary="MNIST-1D that changes several times while a host lives on it, scored over its life under a cap",
        load=load_stream,
        parameters=STREAM_PARAMETERS,
        check=check_stream,
        changes=lambda parameters: str(parameters["plan"]),
        epochs=EPOCHS,
        counts="life",
    ),
)
