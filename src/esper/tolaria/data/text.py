"""The characters of a text, as tokens and the tokens that come next."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from esper.tolaria.data.errors import DatasetCorrupt, DatasetMissing
from esper.tolaria.data.splits import Phase, SealedTest, Split, TaskData

_SHARES = (0.8, 0.9)  # where the training stretch ends, and where validation does


def load_text(path: Path, *, context: int) -> TaskData:
    """Three stretches of the text: 80 % to train on, then 10 % to validate on, then 10 % to test on.

    A class is a character of the file, in the order of code points. Samples are windows that do not overlap.
    """
    if not path.is_file():
        raise DatasetMissing(f"text.path: there is no file {path} (looked from {Path.cwd()})")
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DatasetCorrupt(
            path, found=f"byte {error.object[error.start]:#04x} at {error.start}", expected="UTF-8"
        ) from None
    least = 10 * (context + 1) + 10  # so that each tenth holds one window and the character after it
    if len(text) < least:
        raise DatasetCorrupt(
            path, found=f"{len(text)} characters", expected=f"at least {least} for a context of {context}"
        )
    points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    alphabet, tokens = np.unique(points, return_inverse=True)
    if len(alphabet) < 2:
        raise DatasetCorrupt(path, found=f"only the character {text[0]!r}", expected="two or more")
    ends = [int(share * len(tokens)) for share in _SHARES]
    train, validation, test = (_windows(part, context) for part in np.split(tokens.astype(np.int64), ends))
    return TaskData((Phase(0, train, validation),), SealedTest(test), len(alphabet))


def _windows(tokens: NDArray[np.int64], context: int) -> Split:
    count = (len(tokens) - 1) // context
    inputs = tokens[: count * context].reshape(count, context)
    targets = tokens[1 : count * context + 1].reshape(count, context)
    return Split.from_arrays(inputs, targets)
