"""From published pictures in bytes to a task's splits."""

import math
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from esper.tolaria.data.splits import Phase, SealedTest, Split, TaskData
from esper.tolaria.data.stratify import stratified_splits

Bytes = NDArray[np.uint8]


class Pictures(NamedTuple):
    """A published data set with its own split."""

    train: Bytes
    """(sample, channel, height, width)"""
    train_labels: Bytes
    test: Bytes
    test_labels: Bytes


def picture_data(pictures: Pictures, *, validation: int, classes: int, size: int | None = None) -> TaskData:
    """Validation is a stratified part of the published training set; channels are standardised by what remains.

    size  so many of what remains, stratified too; None is all
    """
    labels = pictures.train_labels.astype(np.int64)
    kept, held_out = stratified_splits(labels, (len(labels) - validation, validation), seed=0)
    if size is not None and size < len(kept):
        fewer, _ = stratified_splits(labels[kept], (size, len(kept) - size), seed=0)
        kept = kept[fewer]
    train = pictures.train[kept]
    mean, deviation = channel_statistics(train)

    def split(pixels: Bytes, targets: NDArray[np.int64]) -> Split:
        standard = torch.from_numpy(pixels.astype(np.float32)).sub_(mean).div_(deviation)
        return Split(standard, torch.from_numpy(targets))

    phase = Phase(0, split(train, labels[kept]), split(pictures.train[held_out], labels[held_out]))
    test = split(pictures.test, pictures.test_labels.astype(np.int64))
    return TaskData((phase,), SealedTest(test), classes)


def channel_statistics(pixels: Bytes) -> tuple[torch.Tensor, torch.Tensor]:
    """(1, channel, 1, 1) mean and deviation, from sums of whole numbers: the same to the bit on any machine."""
    means, deviations = [], []
    for channel in np.moveaxis(pixels, 1, 0):
        count = channel.size
        total = int(channel.sum(dtype=np.int64))
        squares = int(np.square(channel, dtype=np.uint16).sum(dtype=np.int64))
        means.append(total / count)
        deviations.append(
            math.sqrt(count * squares - total**2) / count or 1.0
        )  # 1: a channel that never varies
    return torch.tensor(means).view(1, -1, 1, 1), torch.tensor(deviations).view(1, -1, 1, 1)
