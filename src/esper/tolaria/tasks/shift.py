"""MNIST-1D that changes while a host trains on it: a deployed model whose data moved."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from esper.tolaria.data import Phase, Split, TaskData, mnist1d
from esper.tolaria.tasks.series import MNIST1D, MNIST1D_PARAMETERS, load_mnist1d
from esper.tolaria.tasks.task import Parameter, ParameterError, ParameterSpec

EPOCHS = 24
KINDS = ("shuffle", "classes", "noise")
_CLASSES_BEFORE = 5

SHIFT_PARAMETERS: Mapping[str, ParameterSpec] = {
    **MNIST1D_PARAMETERS,
    "noise": replace(
        MNIST1D_PARAMETERS["noise"],
        doc="share of training labels that are wrong; with kind=noise only from the change on",
    ),
    "shuffled": replace(
        MNIST1D_PARAMETERS["shuffled"],
        doc="share of the 40 positions that change places; with kind=shuffle only from the change on",
    ),
    "classes": ParameterSpec(
        kind="int", default=_CLASSES_BEFORE, low=2, high=9, doc="with kind=classes: digits before the change"
    ),
    "change": ParameterSpec(
        kind="int", default=10, low=1, high=EPOCHS - 1, doc="epochs trained before the data change"
    ),
    "kind": ParameterSpec(
        kind="str",
        default="classes",
        choices=KINDS,
        doc="what changes: positions are shuffled, classes are added up to 10, or label noise appears",
    ),
}


def check_shift(parameters: Mapping[str, Parameter]) -> None:
    kind = parameters["kind"]
    if kind == "shuffle" and round(float(parameters["shuffled"]) * mnist1d.POSITIONS) < 2:
        raise ParameterError(
            f"shift.shuffled must be at least 0.05 with kind=shuffle, or nothing changes; it is "
            f"{parameters['shuffled']!r}"
        )
    if kind == "noise" and not float(parameters["noise"]) > 0:
        raise ParameterError(
            f"shift.noise must be above 0 with kind=noise, or nothing changes; it is {parameters['noise']!r}"
        )
    if kind != "classes" and parameters["classes"] != _CLASSES_BEFORE:
        raise ParameterError(
            f"shift.classes is read with kind=classes only, and kind is {kind}; it is {parameters['classes']!r}"
        )


def load_shift(parameters: Mapping[str, Parameter]) -> TaskData:
    """The head has 10 outputs throughout; the test split is of the data after the change."""
    after = {name: parameters[name] for name in MNIST1D_PARAMETERS} | {"classes": mnist1d.CLASSES}
    kind, change = parameters["kind"], int(parameters["change"])
    last = load_mnist1d(after)
    if kind == "classes":
        first, second = _classes_added(last, parameters)
    else:
        absent = {"shuffled": 0.0} if kind == "shuffle" else {"noise": 0.0}
        first, second = load_mnist1d(after | absent).phases[0], last.phases[0]
    return TaskData((first, replace(second, start_epoch=change)), last.test, last.classes)


def _classes_added(last: TaskData, parameters: Mapping[str, Parameter]) -> tuple[Phase, Phase]:
    """Before: only the samples of the first classes. After: all of them, and what was mislabelled stays so."""
    before, noise, data = int(parameters["classes"]), float(parameters["noise"]), int(parameters["data"])
    train, validation = last.phases[0].train, last.phases[0].validation
    true = mnist1d.pool(data, mnist1d.CLASSES).labels[: len(train)]
    known = true < before
    labels = np.empty_like(true)
    labels[known] = mnist1d.mislabel(true[known], noise, before, data)
    labels[~known] = mnist1d.mislabel(true[~known], noise, mnist1d.CLASSES, data)
    inputs = train.inputs.numpy()
    seen = validation.targets.numpy() < before
    first = Phase(
        0,
        Split.from_arrays(inputs[known], labels[known]),
        Split.from_arrays(validation.inputs.numpy()[seen], validation.targets.numpy()[seen]),
    )
    return first, Phase(0, Split.from_arrays(inputs, labels), validation)


ROWS = (
    replace(
        MNIST1D,
        name="shift",
        summary="MNIST-1D whose data change at an epoch: positions, classes or label noise",
        load=load_shift,
        parameters=SHIFT_PARAMETERS,
        check=check_shift,
        epochs=EPOCHS,
    ),
)
