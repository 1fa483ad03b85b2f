"""From published pictures in bytes to a task's splits."""

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


def picture_data(pictures: Pictures, *, validation: int, classes: int) -> TaskData:
    """Validation is a stratified part of the published training set; channels are standardised by what remains."""
    labels = pictures.train_labels.astype(np.int64)
    kept, held_out = stratified_splits(labels, (len(labels) - validation, validation), seed=0)
    train = _scaled(pictures.train[kept])
    mean, deviation = train.mean((0, 2, 3), keepdim=True), train.std((0, 2, 3), keepdim=True)
    deviation[deviation == 0] = 1  # a channel that never varies

    def split(inputs: torch.Tensor, targets: NDArray[np.int64]) -> Split:
        return Split(inputs.sub_(mean).div_(deviation), torch.from_numpy(targets))

    phase = Phase(0, split(train, labels[kept]), split(_scaled(pictures.train[held_out]), labels[held_out]))
    test = split(_scaled(pictures.test), pictures.test_labels.astype(np.int64))
    return TaskData((phase,), SealedTest(test), classes)


def _scaled(pixels: Bytes) -> torch.Tensor:
    return torch.from_numpy(pixels.astype(np.float32)).div_(255)
