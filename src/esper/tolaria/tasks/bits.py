"""Slowly changing regression as a stream: a function of 20 bits, most of which flip one by one while a host lives."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np
from torch import nn

from esper.kasmina.hosts import MLP
from esper.tolaria.data import Phase, SealedTest, Split, TaskData
from esper.tolaria.data.drawn import BitFunction, slow_states, some_bits
from esper.tolaria.tasks.regression import FLAT_BLUEPRINTS
from esper.tolaria.tasks.task import OptimiserSpec, Parameter, ParameterSpec, Task

EPOCHS = 100
_JUDGED = 256
"""Samples of the validation and of the test split of each phase."""


def small_learner(data: TaskData, *, width: int) -> nn.Module:
    return MLP(data.phases[0].train.inputs.shape[1], data.classes, widths=(width, width))


def load_bits(parameters: Mapping[str, Parameter]) -> TaskData:
    """A phase for each state of the slow bits, with a test split of its own."""
    rng = np.random.default_rng(int(parameters["data"]))
    function, every = BitFunction.drawn(rng), int(parameters["every"])
    starts = range(0, EPOCHS, every)
    phases = []
    for start, state in zip(starts, slow_states(int(parameters["slow"]), len(starts), rng), strict=True):
        bits = (some_bits(state, count, rng) for count in (int(parameters["size"]), _JUDGED, _JUDGED))
        splits = [Split.from_arrays(some.astype(np.float32), function(some)) for some in bits]
        phases.append(Phase(start, splits[0], splits[1], SealedTest(splits[2])))
    last = phases[-1].test
    assert last is not None
    return TaskData(tuple(phases), last, classes=1)


def flips(parameters: Mapping[str, Parameter]) -> str:
    every = int(parameters["every"])
    return "/".join(f"flip@{epoch}" for epoch in range(every, EPOCHS, every))


def of_width(row: Task, parameters: Mapping[str, Parameter]) -> Task:
    return replace(row, host=partial(small_learner, width=int(parameters["width"])))


SLOW_BITS = Task(
    name="slow_bits",
    summary="a function of 20 bits that flip one by one while a small host lives on them, scored over its life",
    host=partial(small_learner, width=5),
    slots=("blocks.*",),
    blueprints=FLAT_BLUEPRINTS,
    load=load_bits,
    parameters={
        "slow": ParameterSpec(
            kind="int",
            default=15,
            low=1,
            high=16,
            doc="of the 20 bits, those that flip slowly",
        ),
        "every": ParameterSpec(
            kind="int", default=4, low=1, high=EPOCHS, doc="epochs from one flip to the next"
        ),
        "size": ParameterSpec(
            kind="int", default=320, low=64, high=4000, doc="training samples of each phase"
        ),
        "width": ParameterSpec(
            kind="int", default=5, low=2, high=512, doc="units of both layers of the host"
        ),
        "cap": ParameterSpec(
            kind="float",
            default=1.5,
            low=0.0,
            high=10.0,
            doc="parameters that may be added, over those of the host",
        ),
        "data": ParameterSpec(
            kind="int", default=0, low=0, doc="seed of the function, the flips and the samples"
        ),
    },
    tailor=of_width,
    changes=flips,
    optimiser=OptimiserSpec(lr=1e-2),
    batch=32,
    steps_per_epoch=10,
    epochs=EPOCHS,
    counts="life",
)
ROWS = (SLOW_BITS,)
