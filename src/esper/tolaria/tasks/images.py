"""The tasks over pictures."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from esper.kasmina.hosts import ConvNet, ResNet
from esper.tolaria.data import Phase, SealedTest, Split, TaskData
from esper.tolaria.data.images import FASHION_MNIST, MNIST, IdxSet, picture_data, read_cifar10, read_idx_set
from esper.tolaria.tasks.task import Augmentation, Loader, OptimiserSpec, Parameter, ParameterSpec, Task

IMAGE_BLUEPRINTS = (
    "norm",
    "attention",
    "depthwise",
    "bottleneck",
    "conv_small",
    "conv_light",
    "conv_heavy",
    "mixer",
    "lora",
    "lora_large",
    "widen",
)
_VALIDATION = 5_000


def small_host(data: TaskData) -> nn.Module:
    return ConvNet(1, data.classes, dims=2, widths=(8, 16, 16), pools=(2, 2, 1))


def cifar_host(data: TaskData) -> nn.Module:
    return ConvNet(3, data.classes, dims=2, widths=(8, 16, 32), pools=(2, 2, 2), norm="batch")


def deep_host(data: TaskData) -> nn.Module:
    return ConvNet(
        3, data.classes, dims=2, widths=(16, 16, 32, 32, 64, 64), pools=(1, 2, 1, 2, 1, 2), norm="batch"
    )


def impaired_host(data: TaskData) -> nn.Module:
    """Sees one pixel at a time: what it lacks is known, and a convolution in a slot supplies it."""
    return ConvNet(3, data.classes, dims=2, widths=(8, 16, 32), pools=(2, 2, 2), kernel=1, norm="batch")


RESNET_WIDTHS = (28, 40, 52)
"""With nearly as many parameters as 16, 32, 64, and more of them where pictures are large: 0.7 points on CIFAR-10."""


def resnet_host(data: TaskData) -> nn.Module:
    return ResNet(3, data.classes, widths=RESNET_WIDTHS)


def idx_loader(source: IdxSet, *, validation: int = _VALIDATION) -> Loader:
    return lambda parameters: picture_data(
        read_idx_set(source),
        validation=validation,
        classes=source.classes,
        size=int(parameters["size"]) or None,
    )


def cifar_loader(*, per_batch: int = 10_000, validation: int = _VALIDATION) -> Loader:
    return lambda _: picture_data(read_cifar10(per_batch), validation=validation, classes=10)


def load_synthetic(parameters: Mapping[str, Parameter]) -> TaskData:
    """Noise with the shape of CIFAR-10: nothing can be learned from it but how fast things run."""
    samples, rng = int(parameters["samples"]), np.random.default_rng(int(parameters["data"]))
    held_out = max(1, samples // 8)

    def split(count: int) -> Split:
        images = rng.standard_normal((count, 3, 32, 32), dtype=np.float32)
        return Split(torch.from_numpy(images), torch.from_numpy(rng.integers(0, 10, count)))

    return TaskData((Phase(0, split(samples), split(held_out)),), SealedTest(split(held_out)), classes=10)


def _idx_task(source: IdxSet, summary: str) -> Task:
    return Task(
        name=source.name,
        summary=summary,
        host=small_host,
        slots=("blocks.*",),
        blueprints=IMAGE_BLUEPRINTS,
        load=idx_loader(source),
        parameters={
            "size": ParameterSpec(
                kind="int", default=0, low=0, high=55_000, doc="training samples, a stratified part; 0 is all"
            )
        },
        optimiser=OptimiserSpec(lr=5e-3),
        batch=256,
        epochs=20,
    )


def _cifar_task(name: str, host: Callable[[TaskData], nn.Module], what: str) -> Task:
    return Task(
        name=name,
        summary=f"32 x 32 colour pictures of ten things, {what}",
        host=host,
        slots=("blocks.*",),
        blueprints=IMAGE_BLUEPRINTS,
        load=cifar_loader(),
        optimiser=OptimiserSpec(lr=5e-3),
        batch=512,
        epochs=30,
        precision="bf16",
        channels_last=True,
    )


ROWS = (
    _idx_task(MNIST, "28 x 28 handwritten digits, read from IDX files"),
    _idx_task(FASHION_MNIST, "28 x 28 pieces of clothing, read from IDX files"),
    _cifar_task("cifar10", cifar_host, "by a host of 8-16-32 channels"),
    _cifar_task("cifar10_deep", deep_host, "by a host of six blocks, 16 to 64 channels"),
    _cifar_task(
        "cifar10_impaired", impaired_host, "by a host of 8-16-32 channels that sees one pixel at a time"
    ),
    replace(
        _cifar_task("cifar10_resnet", resnet_host, "by a residual host of 179k parameters"),
        optimiser=OptimiserSpec(kind="sgd", lr=0.2, weight_decay=5e-4),
        schedule="one_cycle",
        augmentation=Augmentation(),
        batch=128,
        epochs=20,
    ),
    replace(
        _cifar_task("synthetic", cifar_host, ""),
        summary="noise in the shape of CIFAR-10, to measure speed with: there is nothing to learn",
        load=load_synthetic,
        parameters={
            "samples": ParameterSpec(
                kind="int",
                default=4096,
                low=512,
                high=50_000,
                doc="training samples; an eighth as many to validate",
            ),
            "data": ParameterSpec(kind="int", default=0, low=0, doc="seed of the noise"),
        },
        epochs=5,
    ),
)
