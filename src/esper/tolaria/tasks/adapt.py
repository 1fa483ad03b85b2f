"""Adapting a frozen base to a target: its head is trained, and what grows grows in a network that stays as it is.

    adapt:amount=1.5,base=pictures_batch,shift=noise,size=300

A host begins with the head that the base came with. The parameters `trains`, `statistics` and `lr` say how it is
trained, so that what others do with a base (fine-tune all of it, LoRA everywhere) is an instance too.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import cast, get_args

from torch import nn

from esper.kasmina.hosts.pretrained import PretrainedHost, Statistics, Trains
from esper.tolaria.data import TaskData
from esper.tolaria.data.shifts import SHIFTS
from esper.tolaria.data.targets import FAMILIES, target_data
from esper.tolaria.tasks.bases import BASES, Base
from esper.tolaria.tasks.series import MNIST1D_PARAMETERS
from esper.tolaria.tasks.task import OptimiserSpec, Parameter, ParameterError, ParameterSpec, Task

GRID_BLUEPRINTS = ("norm", "depthwise", "bottleneck", "conv_small", "conv_light", "mixer", "lora")
VECTOR_BLUEPRINTS = ("norm", "attention", "depthwise", "mlp_small", "mlp", "lora")
"""What may grow behind convolutions, and behind attention."""

ADAPT_PARAMETERS: Mapping[str, ParameterSpec] = {
    "base": ParameterSpec(
        kind="str", default="series_batch", choices=tuple(BASES), doc="the network that was trained before"
    ),
    "shift": ParameterSpec(
        kind="str", default="noise", choices=tuple(SHIFTS), doc="what happened to the samples since"
    ),
    "amount": ParameterSpec(kind="float", default=1.0, low=0.0, high=4.0, doc="how much of it"),
    "size": ParameterSpec(
        kind="int", default=500, low=100, high=2000, doc="labelled samples; of digits there are 500"
    ),
    "noise": MNIST1D_PARAMETERS["noise"],
    "data": ParameterSpec(
        kind="int", default=0, low=0, doc="seed of the samples, and of what the shift draws"
    ),
    "trains": ParameterSpec(
        kind="str",
        default="head",
        choices=get_args(Trains),
        doc="what of the host is trained: its head, all of it, or the head and LoRA of that rank at every layer",
    ),
    "statistics": ParameterSpec(
        kind="str",
        default="target",
        choices=get_args(Statistics),
        doc="whose statistics BatchNorm layers use: the target's, the base's, or those of the batches as they come",
    ),
    "lr": ParameterSpec(kind="float", default=0.005, low=1e-6, high=1.0, doc="learning rate"),
}


def check_adapt(parameters: Mapping[str, Parameter]) -> None:
    """Raise ParameterError where the parameters do not go together."""
    base, shift, amount = (
        BASES[str(parameters["base"])],
        str(parameters["shift"]),
        float(parameters["amount"]),
    )
    family = FAMILIES[base.family]
    if shift == "turn" and len(family.sample) < 3:
        raise ParameterError(f"shift=turn needs pictures or digits; {base.name} has learned {base.family}")
    require_amount(shift, amount)
    if int(parameters["size"]) > family.most_labels:
        raise ParameterError(
            f"size must be at most {family.most_labels} with base={base.name}, not {parameters['size']}"
        )
    if not base.normalises_batches and parameters["statistics"] != ADAPT_PARAMETERS["statistics"].default:
        raise ParameterError(
            f"statistics is not read with base={base.name}, which has no BatchNorm; it is "
            f"{parameters['statistics']!r}"
        )


def require_amount(shift: str, amount: float, *, most: float | None = None) -> None:
    """Raise ParameterError unless there can be so much of the shift: `most`, or what the table of shifts says."""
    limit = SHIFTS[shift].most
    if limit is None:
        if amount != ADAPT_PARAMETERS["amount"].default:
            raise ParameterError(f"amount is not read with shift={shift}; it is {amount!r}")
        return
    limit = limit if most is None else most
    if not 0.0 < amount <= limit:
        raise ParameterError(
            f"amount must be above 0 and at most {limit:g} with shift={shift}, not {amount!r}"
        )


def load_adapt(parameters: Mapping[str, Parameter]) -> TaskData:
    return target_data(
        BASES[str(parameters["base"])].family,
        shift=str(parameters["shift"]),
        amount=float(parameters["amount"]),
        size=int(parameters["size"]),
        noise=float(parameters["noise"]),
        data=int(parameters["data"]),
    )


def adapt_host(data: TaskData, *, base: Base, trains: Trains, statistics: Statistics) -> nn.Module:
    inputs = data.phases[0].train.inputs
    host = PretrainedHost(
        base.shape,
        tuple(inputs.shape[1:]),
        data.classes,
        base.weights(),
        trains=trains,
        statistics=statistics,
    )
    host.adopt_statistics(inputs)
    return host


def with_base(row: Task, parameters: Mapping[str, Parameter]) -> Task:
    """The row with the base and the training that these parameters choose."""
    base = BASES[str(parameters["base"])]
    return replace(
        row,
        host=partial(
            adapt_host,
            base=base,
            trains=cast(Trains, parameters["trains"]),
            statistics=cast(Statistics, parameters["statistics"]),
        ),
        blueprints=GRID_BLUEPRINTS if base.shape.kind == "conv" else VECTOR_BLUEPRINTS,
        optimiser=OptimiserSpec(lr=float(parameters["lr"])),
    )


ADAPT = Task(
    name="adapt",
    summary="a frozen network that was trained before, to be adapted to samples or labels that have shifted",
    host=partial(adapt_host, base=BASES["series_batch"], trains="head", statistics="target"),
    slots=("stem", "blocks.*"),
    blueprints=GRID_BLUEPRINTS,
    load=load_adapt,
    parameters=ADAPT_PARAMETERS,
    check=check_adapt,
    tailor=with_base,
    optimiser=OptimiserSpec(lr=0.005),
    batch=32,
    steps_per_epoch=20,
    epochs=20,
)
ROWS = (ADAPT,)
