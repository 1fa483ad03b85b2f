"""Adapting a published network to a target with 800 labels: its body is frozen, and a new head is trained.

    backbone:amount=0.5,samples=cifar10,shift=noise
    backbone:backbone=minilm,samples=tweets

Weights and most samples are files on disk. As with `adapt`, what others do with a backbone (fine-tune all of it, LoRA
everywhere) is an instance too.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import cast, get_args

from torch import nn

from esper.kasmina.hosts.pretrained import Statistics, Trains
from esper.tolaria.data import TaskData
from esper.tolaria.data.few_labels import (
    MOST_LABELS,
    PICTURE_SHIFTS,
    PICTURES,
    TEXT_SHIFTS,
    TEXTS,
    picture_target,
    text_target,
)
from esper.tolaria.tasks.adapt import ADAPT_PARAMETERS, GRID_BLUEPRINTS, VECTOR_BLUEPRINTS, require_amount
from esper.tolaria.tasks.backbones import BACKBONES, Backbone
from esper.tolaria.tasks.series import MNIST1D_PARAMETERS
from esper.tolaria.tasks.task import OptimiserSpec, Parameter, ParameterError, ParameterSpec, Task

BACKBONE_PARAMETERS: Mapping[str, ParameterSpec] = {
    "backbone": ParameterSpec(
        kind="str",
        default="mobilenet_v2",
        choices=tuple(BACKBONES),
        doc="the network that was trained before",
    ),
    "samples": ParameterSpec(
        kind="str",
        default="cifar10",
        choices=(*PICTURES, *TEXTS),
        doc="pictures, or for minilm sentences of one domain, told apart by sentiment",
    ),
    "shift": ParameterSpec(
        kind="str",
        default="none",
        choices=PICTURE_SHIFTS,
        doc="what happened to the samples; to texts none or noise",
    ),
    "amount": ParameterSpec(
        kind="float",
        default=1.0,
        low=0.0,
        high=4.0,
        doc="how much of it; in texts the share of letters, at most 1",
    ),
    "size": ParameterSpec(kind="int", default=MOST_LABELS, low=100, high=MOST_LABELS, doc="labelled samples"),
    "noise": MNIST1D_PARAMETERS["noise"],
    "data": ParameterSpec(
        kind="int", default=0, low=0, doc="seed of which samples these are, and of what the shift draws"
    ),
    "side": ParameterSpec(
        kind="int", default=64, low=32, high=224, doc="pixels that pictures are enlarged to; a multiple of 32"
    ),
    "trains": ADAPT_PARAMETERS["trains"],
    "statistics": ParameterSpec(
        kind="str",
        default="target",
        choices=get_args(Statistics),
        doc="whose statistics BatchNorm layers use: the target's, the backbone's, or those of each batch",
    ),
    "lr": ParameterSpec(kind="float", default=0.001, low=1e-6, high=1.0, doc="learning rate"),
}


def check_backbone(parameters: Mapping[str, Parameter]) -> None:
    """Raise ParameterError where the parameters do not go together."""
    backbone, samples, shift = (
        BACKBONES[str(parameters["backbone"])],
        str(parameters["samples"]),
        str(parameters["shift"]),
    )
    fitting: Mapping[str, object] = TEXTS if backbone.reads_texts else PICTURES
    if samples not in fitting:
        raise ParameterError(
            f"samples must be one of {', '.join(fitting)} with backbone={backbone.name}, not {samples!r}"
        )
    if backbone.reads_texts and shift not in TEXT_SHIFTS:
        raise ParameterError(f"shift must be one of {', '.join(TEXT_SHIFTS)} with texts, not {shift!r}")
    require_amount(shift, float(parameters["amount"]), most=1.0 if backbone.reads_texts else None)
    if int(parameters["side"]) % 32:
        raise ParameterError(f"side must be a multiple of 32, not {parameters['side']}")
    if backbone.reads_texts:
        for name in ("side", "statistics"):
            if parameters[name] != BACKBONE_PARAMETERS[name].default:
                raise ParameterError(
                    f"{name} is not read with backbone={backbone.name}, which reads texts; it is {parameters[name]!r}"
                )


def load_backbone(parameters: Mapping[str, Parameter]) -> TaskData:
    backbone = BACKBONES[str(parameters["backbone"])]
    samples, shift = str(parameters["samples"]), str(parameters["shift"])
    amount, noise = float(parameters["amount"]), float(parameters["noise"])
    size, data = int(parameters["size"]), int(parameters["data"])
    if backbone.reads_texts:
        return text_target(
            samples, backbone.vocabulary_file(), shift=shift, amount=amount, size=size, noise=noise, data=data
        )
    return picture_target(
        samples,
        shift=shift,
        amount=amount,
        size=size,
        noise=noise,
        data=data,
        side=int(parameters["side"]),
        mean=backbone.mean,
        deviation=backbone.deviation,
    )


def backbone_host(data: TaskData, *, backbone: Backbone, trains: Trains, statistics: Statistics) -> nn.Module:
    host = backbone.host(data.classes, trains=trains, statistics=statistics)
    host.adopt_statistics(data.phases[0].train.inputs)
    return host


def with_backbone(row: Task, parameters: Mapping[str, Parameter]) -> Task:
    """The row with the backbone and the training that these parameters choose."""
    backbone = BACKBONES[str(parameters["backbone"])]
    return replace(
        row,
        host=partial(
            backbone_host,
            backbone=backbone,
            trains=cast(Trains, parameters["trains"]),
            statistics=cast(Statistics, parameters["statistics"]),
        ),
        slots=backbone.slots,
        blueprints=VECTOR_BLUEPRINTS if backbone.reads_texts else GRID_BLUEPRINTS,
        optimiser=OptimiserSpec(lr=float(parameters["lr"])),
    )


BACKBONE = Task(
    name="backbone",
    summary="a frozen network of ImageNet or of sentences, from files on disk, to be adapted with 800 labels",
    host=partial(backbone_host, backbone=BACKBONES["mobilenet_v2"], trains="head", statistics="target"),
    slots=BACKBONES["mobilenet_v2"].slots,
    blueprints=GRID_BLUEPRINTS,
    load=load_backbone,
    parameters=BACKBONE_PARAMETERS,
    check=check_backbone,
    tailor=with_backbone,
    optimiser=OptimiserSpec(lr=0.001),
    batch=32,
    epochs=10,
)
ROWS = (BACKBONE,)
