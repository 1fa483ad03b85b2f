"""The tasks over short series: digits, MNIST-1D, and MNIST-1D whose data shift at one epoch.

On the host that the design's measurements were made with.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from torch import nn

from esper.kasmina.hosts import ConvNet
from esper.tolaria.data import Phase, SealedTest, Split, TaskData, mnist1d
from esper.tolaria.data.splits import stratified_splits
from esper.tolaria.tasks.images import IMAGE_BLUEPRINTS
from esper.tolaria.tasks.task import OptimiserSpec, Parameter, ParameterError, ParameterSpec, Task

SERIES_BLUEPRINTS = tuple(name for name in IMAGE_BLUEPRINTS if name != "lora_large")
"""All that serve a series but lora_large, which at 16 channels is no longer of low rank."""


def host_b(data: TaskData) -> nn.Module:
    """1,426 parameters at 10 classes."""
    return ConvNet(1, data.classes, dims=1, widths=(8, 16, 16), pools=(1, 2, 2))


def load_digits(_: Mapping[str, Parameter]) -> TaskData:
    """Scikit-learn's 1,797 digits of 8 x 8 pixels, row after row, on a scale of 0..1."""
    from sklearn import datasets  # a second's import that no other task needs

    digits = datasets.load_digits()
    series = (digits.data / 16).astype(np.float32)[:, None, :]  # (sample, 1, 64)
    labels = digits.target.astype(np.int64)
    train, validation, test = (
        Split.from_arrays(series[part], labels[part])
        for part in stratified_splits(labels, (700, 300, 797), seed=0)
    )
    return TaskData((Phase(0, train, validation),), SealedTest(test), classes=10)


MNIST1D_PARAMETERS: Mapping[str, ParameterSpec] = {
    "size": ParameterSpec(kind="int", default=4000, low=500, high=4000, doc="training samples"),
    "noise": ParameterSpec(
        kind="float",
        default=0.0,
        low=0.0,
        high=0.4,
        doc="share of training labels that are wrong (another class, uniformly); validation and test stay clean",
    ),
    "shuffled": ParameterSpec(
        kind="float", default=0.0, low=0.0, high=1.0, doc="share of the 40 positions that change places"
    ),
    "permutation": ParameterSpec(kind="int", default=0, low=0, doc="seed of which positions go where"),
    "classes": ParameterSpec(kind="int", default=10, low=2, high=10, doc="only the first so many digits"),
    "data": ParameterSpec(kind="int", default=0, low=0, doc="seed of the generated samples"),
}


def load_mnist1d(parameters: Mapping[str, Parameter]) -> TaskData:
    size, data, classes = (int(parameters[name]) for name in ("size", "data", "classes"))
    series, labels = mnist1d.pool(data, classes)
    order = mnist1d.reordering(float(parameters["shuffled"]), int(parameters["permutation"]))
    series = series[:, None, order]  # (sample, 1, 40)
    noisy = mnist1d.mislabel(labels[:size], float(parameters["noise"]), classes, data)
    held_out = slice(mnist1d.TRAIN_POOL, mnist1d.TRAIN_POOL + mnist1d.VALIDATION)
    tested = slice(held_out.stop, None)
    phase = Phase(
        0, Split.from_arrays(series[:size], noisy), Split.from_arrays(series[held_out], labels[held_out])
    )
    return TaskData((phase,), SealedTest(Split.from_arrays(series[tested], labels[tested])), classes)


DIGITS = Task(
    name="digits",
    summary="8 x 8 handwritten digits as series of 64 pixels; they come with scikit-learn",
    host=host_b,
    slots=("blocks.*",),
    blueprints=SERIES_BLUEPRINTS,
    load=load_digits,
    optimiser=OptimiserSpec(lr=7e-3),
    batch=64,
    steps_per_epoch=24,
    epochs=20,
)
MNIST1D = replace(
    DIGITS,
    name="mnist1d",
    summary="MNIST-1D, generated: ten templates as noisy series of 40 positions",
    load=load_mnist1d,
    parameters=MNIST1D_PARAMETERS,
)

# MNIST-1D that changes while a host trains on it: a deployed model whose data moved

SHIFT_EPOCHS = 24
SHIFT_KINDS = ("shuffle", "classes", "noise")
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
        kind="int", default=10, low=1, high=SHIFT_EPOCHS - 1, doc="epochs trained before the data change"
    ),
    "kind": ParameterSpec(
        kind="str",
        default="classes",
        choices=SHIFT_KINDS,
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
    DIGITS,
    MNIST1D,
    replace(
        MNIST1D,
        name="shift",
        summary="MNIST-1D whose data change at an epoch: positions, classes or label noise",
        load=load_shift,
        parameters=SHIFT_PARAMETERS,
        check=check_shift,
        epochs=SHIFT_EPOCHS,
    ),
)
