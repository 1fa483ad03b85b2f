"""Bases: small networks that were trained before, whose weights come with the package.

`scripts/pretrain_bases.py` trained them, each on samples that no target has.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from safetensors.torch import load
from torch import Tensor

from esper.kasmina.hosts.drawn import HostShape
from esper.tolaria.data import DatasetCorrupt

FOLDER = Path(__file__).parent / "base_weights"


@dataclass(frozen=True, slots=True)
class Base:
    """One of them."""

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
