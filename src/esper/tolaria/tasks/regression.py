"""The tasks that predict a measured quantity: diabetes, drawn functions, and a table of one's own."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from torch import nn

from esper.kasmina.hosts import MLP
from esper.tolaria.data import Phase, SealedTest, Split, TaskData
from esper.tolaria.data.drawn import SHAPES, load_function
from esper.tolaria.data.files import load_quantity_table, standardised
from esper.tolaria.tasks.files import TABULAR
from esper.tolaria.tasks.task import OptimiserSpec, Parameter, ParameterSpec, Task

FLAT_BLUEPRINTS = ("norm", "lora", "mlp_small", "mlp", "widen")
_DIABETES_SPLITS = (262, 80, 100)  # training, validation, test


def quantity_host(data: TaskData) -> nn.Module:
    return MLP(data.phases[0].train.inputs.shape[1], data.classes, widths=(16, 16))


def load_diabetes(parameters: Mapping[str, Parameter]) -> TaskData:
    """Scikit-learn's 442 patients, ten measurements each, and how far the disease went in a year; standardised."""
    from sklearn import datasets  # a second's import that few tasks need

    table = datasets.load_diabetes(scaled=False)
    order = np.random.default_rng(int(parameters["data"])).permutation(len(table.target))
    parts = np.split(order, np.cumsum(_DIABETES_SPLITS)[:-1])
    features, progress = (standardised(columns, parts[0]) for columns in (table.data, table.target[:, None]))
    train, validation, test = (Split.from_arrays(features[part], progress[part]) for part in parts)
    return TaskData((Phase(0, train, validation),), SealedTest(test), classes=1)


def load_functions(parameters: Mapping[str, Parameter]) -> TaskData:
    return load_function(
        shape=str(parameters["shape"]),
        features=int(parameters["features"]),
        size=int(parameters["size"]),
        noise=float(parameters["noise"]),
        data=int(parameters["data"]),
    )


def load_tabular_quantity(parameters: Mapping[str, Parameter]) -> TaskData:
    return load_quantity_table(
        Path(str(parameters["path"])).expanduser(),
        target=str(parameters["target"]),
        header=parameters["header"] == "yes",
    )


FUNCTION_PARAMETERS: Mapping[str, ParameterSpec] = {
    "shape": ParameterSpec(
        kind="str", default="smooth", choices=SHAPES, doc="what the terms of the function look like"
    ),
    "features": ParameterSpec(kind="int", default=8, low=2, high=32, doc="inputs of the function"),
    "size": ParameterSpec(kind="int", default=2000, low=200, high=4000, doc="training samples"),
    "noise": ParameterSpec(
        kind="float",
        default=0.1,
        low=0.0,
        high=1.0,
        doc="noise in training targets, in deviations of the function; validation and test stay clean",
    ),
    "data": ParameterSpec(kind="int", default=0, low=0, doc="seed of the function and its samples"),
}
DIABETES = Task(
    name="diabetes",
    summary="how far diabetes goes in a year, from ten measurements; it comes with scikit-learn",
    host=quantity_host,
    slots=("blocks.*",),
    blueprints=FLAT_BLUEPRINTS,
    load=load_diabetes,
    parameters={
        "data": ParameterSpec(kind="int", default=0, low=0, doc="seed of who is trained and tested on")
    },
    optimiser=OptimiserSpec(lr=3e-3),
    batch=64,
    steps_per_epoch=8,
    epochs=20,
)
FUNCTIONS = Task(
    name="functions",
    summary="a drawn function of several numbers, to be predicted",
    host=quantity_host,
    slots=("blocks.*",),
    blueprints=FLAT_BLUEPRINTS,
    load=load_functions,
    parameters=FUNCTION_PARAMETERS,
    optimiser=OptimiserSpec(lr=7e-3),
    batch=64,
    steps_per_epoch=24,
    epochs=20,
)
TABULAR_QUANTITY = replace(
    TABULAR,
    name="tabular_quantity",
    summary="a table of numbers with a column that is a measured quantity, from a CSV, .npy or .npz file",
    load=load_tabular_quantity,
)
ROWS = (DIABETES, FUNCTIONS, TABULAR_QUANTITY)
