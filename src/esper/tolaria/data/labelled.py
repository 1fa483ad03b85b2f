"""Generated samples with their labels, cut into splits."""

import numpy as np
from numpy.typing import NDArray

from esper.tolaria.data.mnist1d import mislabel
from esper.tolaria.data.splits import Phase, SealedTest, Split, TaskData

VALIDATION, TEST = 500, 2000


def labelled_data(
    inputs: NDArray[np.float32] | NDArray[np.int64],
    labels: NDArray[np.int64],
    *,
    classes: int,
    noise: float,
    data: int,
) -> TaskData:
    """The first 500 samples validate, 2,000 test, all others are trained on, `noise` of them with wrong labels."""
    held_out, tested = slice(VALIDATION), slice(VALIDATION, VALIDATION + TEST)
    known = slice(VALIDATION + TEST, None)
    train = Split.from_arrays(inputs[known], mislabel(labels[known], noise, classes, data))
    validation = Split.from_arrays(inputs[held_out], labels[held_out])
    test = Split.from_arrays(inputs[tested], labels[tested])
    return TaskData((Phase(0, train, validation),), SealedTest(test), classes)
