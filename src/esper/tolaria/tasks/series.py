"""The tasks over short series: digits and MNIST-1D, on the host that the design's measurements were made with."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from torch import nn

from esper.kasmina.hosts import ConvNet
from esper.tolaria.data import Phase, SealedTest, Split, TaskData, mnist1d
from esper.tolaria.data.splits import stratified_splits
from esper.tolaria.tasks.images import IMAGE_BLUEPRINTS
from esper.tolaria.tasks.task import OptimiserSpec, Parameter, ParameterSpec, Task

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
ROWS = (DIGITS, MNIST1D)
