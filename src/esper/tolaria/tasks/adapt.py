"""Adapting a frozen base to a target: its head is trained, and what grows grows in a network that stays as it is.

    adapt:amount=1.5,base=pictures_batch,shift=noise,size=300

A host begins with the head that the base came with. The parameters `trains`, `statistics` and `lr` say how it is
trained, so that what others do with a base (fine-tune all of it, LoRA everywhere) is an instance too.

Bases are small networks whose weights come with the package: `scripts/pretrain_bases.py` trained them, each on
samples that no target has. The suite draws a base, what happened to its samples since, and how many labels there
are. Some shifts are never drawn to train on: one of the inputs, one of the geometry, one of the labels. Half of the
held-out list are such.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import cast, get_args

import numpy as np
from safetensors.torch import load
from torch import Tensor, nn

from esper.kasmina.hosts.drawn import HostShape
from esper.kasmina.hosts.pretrained import PretrainedHost, Statistics, Trains
from esper.tolaria.data import DatasetCorrupt, TaskData
from esper.tolaria.data.targets import FAMILIES, SHIFTS, target_data
from esper.tolaria.tasks.instance import Instance
from esper.tolaria.tasks.series import MNIST1D_PARAMETERS
from esper.tolaria.tasks.task import OptimiserSpec, Parameter, ParameterError, Parameters, ParameterSpec, Task

FOLDER = Path(__file__).parent / "base_weights"


@dataclass(frozen=True, slots=True)
class Base:
    """A small network that was trained before."""

    name: str
    family: str
    """What it has learned: series, pictures or digits."""
    shape: HostShape
    sha256: str
    """Of the file of its weights."""

    @property
    def normalises_batches(self) -> bool:
        """Whether it has BatchNorm layers, and so statistics of what it has learned."""
        return self.shape.norm == "batch"

    def weights(self) -> Mapping[str, Tensor]:
        """Its state dict. Do not write into it."""
        return _weights(self)


@cache
def _weights(base: Base) -> Mapping[str, Tensor]:
    path = FOLDER / f"{base.name}.safetensors"
    content = path.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if found != base.sha256:
        raise DatasetCorrupt(path, f"SHA-256 {found}", f"SHA-256 {base.sha256}")
    return load(content)


_SHAPES: Mapping[str, HostShape] = {
    "series_batch": HostShape(kind="conv", width=24, depth=4, norm="batch", kernel=5, pool="max"),
    "series_layer": HostShape(kind="conv", width=20, depth=3, norm="layer", kernel=5),
    "series_attention": HostShape(kind="attention", width=24, depth=3),
    "pictures_batch": HostShape(kind="conv", width=16, depth=4, norm="batch", pool="max"),
    "pictures_layer": HostShape(kind="conv", width=16, depth=3, norm="layer", pool="max"),
    "pictures_attention": HostShape(kind="attention", width=24, depth=3),
    "digits_batch": HostShape(kind="conv", width=16, depth=4, norm="batch", pool="max"),
    "digits_layer": HostShape(kind="conv", width=16, depth=3, norm="layer"),
    "digits_attention": HostShape(kind="attention", width=24, depth=3),
}
"""family_norm, or family_attention -> what it looks like"""
_SHA256: Mapping[str, str] = {
    "series_batch": "4c382b7eb7249fd41c0b518e0d6d693e17c646c610afe58dd36a9a588d59c4e1",
    "series_layer": "47919821386c83af9830aaeaf16d60db9432222e8e2519c50de477b1a64be284",
    "series_attention": "e0d34c7f74f80c92db4e622fc28cecd3150af9c0e6e9464470449f17ad6ea6e9",
    "pictures_batch": "c30fb0e35cb1e5c42e2c384a3ce01c2f2105d98a51044fd9b28a44c13ba0d565",
    "pictures_layer": "fd784128375cf0d3056a2e02fce82b0d87e58cafb538cd0abf7e45ead1f53eaa",
    "pictures_attention": "648e3dcfd73eea1a7ec7599f37ac8e116a6e93fb93f06114725cd5c8e1cf8aa0",
    "digits_batch": "bc5f5b0cec3d78fac60cdb387c44f7d298d0001bdaea2ae19cf5ff33addd9def",
    "digits_layer": "e1ef8e876f132a7d52e6d1673a3240e76dcf8903565b979d7dcfcc7fec1103bc",
    "digits_attention": "5a43f396b65d58e7c0e4a3bac5511c38d01b3b7ee5fd8ff4172d8a278455de37",
}
BASES: Mapping[str, Base] = {
    name: Base(name, name.partition("_")[0], shape, _SHA256[name]) for name, shape in _SHAPES.items()
}


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


# What the suite draws


HELD_OUT_SHIFTS = ("blur", "stretch", "merge")
DRAWN_SHIFTS = tuple(shift for shift in SHIFTS if shift not in HELD_OUT_SHIFTS)
_AMOUNTS = {
    "contrast": (0.6, 2.0),
    "blur": (0.7, 2.5),
    "turn": (0.15, 1.0),
    "shuffle": (0.2, 1.0),
    "stretch": (0.3, 1.0),
}
"""shift -> the amounts that are drawn."""
_NOISES = {"series": (0.2, 1.0), "pictures": (0.8, 2.5), "digits": (0.4, 1.6)}
"""family -> the amounts of noise: figures are seen through more of it than series."""
_FLAT = (0.85, 1.15)
"""Lost contrasts that leave nothing to see, which are not drawn."""
_MOST_NOISE = 0.4


def draw_target(rng: np.random.Generator, shifts: tuple[str, ...]) -> Parameters:
    """A base with one of these shifts, without the seed of the samples; a third of them have wrong labels."""
    base = BASES[str(rng.choice(tuple(BASES)))]
    family = FAMILIES[base.family]
    shift = str(rng.choice(possible_shifts(base, shifts)))
    parameters: Parameters = {
        "base": base.name,
        "shift": shift,
        "size": round(float(np.exp(rng.uniform(np.log(100), np.log(family.most_labels))))),
        "noise": 0.0 if rng.random() < 2 / 3 else round(float(rng.uniform(0.05, _MOST_NOISE)), 2),
    }
    if SHIFTS[shift].most is not None:
        parameters["amount"] = draw_amount(base, shift, rng)
    return parameters


def possible_shifts(base: Base, shifts: Sequence[str]) -> tuple[str, ...]:
    """Those of these shifts that its samples can have."""
    return tuple(shift for shift in shifts if shift != "turn" or len(FAMILIES[base.family].sample) == 3)


def draw_amount(base: Base, shift: str, rng: np.random.Generator) -> float:
    """How much of a shift, of which there is more and less."""
    amounts = _NOISES[base.family] if shift == "noise" else _AMOUNTS[shift]
    while True:
        amount = round(float(rng.uniform(*amounts)), 2)
        if shift != "contrast" or not _FLAT[0] < amount < _FLAT[1]:
            return amount


def of_other_shift(parameters: Mapping[str, Parameter]) -> bool:
    """Whether such a shift is never trained on."""
    return parameters.get("shift") in HELD_OUT_SHIFTS


def covering() -> tuple[Instance, ...]:
    """An instance of every base: between them they have every slot and every blueprint."""
    return tuple(Instance.of("adapt", {"base": name, "size": 100}) for name in BASES)
