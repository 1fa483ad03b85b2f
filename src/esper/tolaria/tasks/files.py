"""The tasks over a file of one's own: a table, or a text."""

from collections.abc import Mapping
from pathlib import Path

from torch import nn

from esper.kasmina.hosts import GPT, MLP
from esper.tolaria.data import TaskData
from esper.tolaria.data.files import load_table, load_text
from esper.tolaria.tasks.task import OptimiserSpec, Parameter, ParameterSpec, Task


def table_host(data: TaskData) -> nn.Module:
    return MLP(data.phases[0].train.inputs.shape[1], data.classes, widths=(32, 32))


def text_host(data: TaskData) -> nn.Module:
    context = data.phases[0].train.inputs.shape[1]
    return GPT(data.classes, context, layers=2, heads=4, width=64)


def load_tabular(parameters: Mapping[str, Parameter]) -> TaskData:
    return load_table(
        Path(str(parameters["path"])).expanduser(),
        target=str(parameters["target"]),
        header=parameters["header"] == "yes",
    )


def load_characters(parameters: Mapping[str, Parameter]) -> TaskData:
    return load_text(Path(str(parameters["path"])).expanduser(), context=int(parameters["context"]))


TABULAR = Task(
    name="tabular",
    summary="a table of numbers with a column of classes, from a CSV, .npy or .npz file",
    host=table_host,
    slots=("blocks.*",),
    blueprints=("norm", "lora", "mlp_small", "mlp", "widen"),
    load=load_tabular,
    parameters={
        "path": ParameterSpec(
            kind="str", is_path=True, doc="the file; an .npz holds two arrays, features and targets"
        ),
        "target": ParameterSpec(
            kind="str",
            default="-1",
            doc="column (in an .npz: array) to predict, by name or by number from 0",
        ),
        "header": ParameterSpec(
            kind="str",
            default="yes",
            choices=("yes", "no"),
            doc="whether a CSV's first row names the columns",
        ),
    },
    optimiser=OptimiserSpec(lr=3e-3),
    batch=64,
    steps_per_epoch=24,
    epochs=20,
)
ROWS = (
    TABULAR,
    Task(
        name="text",
        summary="the next character of a text file, by a small GPT",
        host=text_host,
        slots=("blocks.*",),
        blueprints=("norm", "attention", "depthwise", "lora", "lora_large", "mlp_small", "mlp"),
        load=load_characters,
        parameters={
            "path": ParameterSpec(kind="str", is_path=True, doc="a text in UTF-8"),
            "context": ParameterSpec(
                kind="int", default=64, low=8, high=1024, doc="characters a sample is long"
            ),
        },
        optimiser=OptimiserSpec(kind="adamw", lr=1e-3, weight_decay=0.1),
        batch=32,
        steps_per_epoch=50,
        epochs=20,
        causal=True,
    ),
)
