"""Targets for published networks, in the manner of VTAB-1k: up to 800 labelled samples, and 200 to validate on.

Pictures are CIFAR-10, Fashion-MNIST and scikit-learn's digits; texts are sentences that twenty people rated for
sentiment each (Hutto and Gilbert 2014), in four domains. Samples may have shifted before the network sees them.
"""

import io
import string
import tarfile
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from esper.kasmina.hosts.backbones import BackboneError
from esper.leyline.errors import install
from esper.tolaria.data.files import PackagedFile, read_packaged
from esper.tolaria.data.images import FASHION_MNIST, Bytes, Pictures, read_cifar10, read_idx_set
from esper.tolaria.data.mnist1d import mislabel
from esper.tolaria.data.splits import (
    DatasetCorrupt,
    Phase,
    SealedTest,
    Split,
    TaskData,
    stratified_splits,
)
from esper.tolaria.data.targets import Labels, shift_inputs

MOST_LABELS, VALIDATION, TEST = 800, 200, 1000
_SHIFT_TAG = 5
"""Names the random stream of what a shift draws."""


# Pictures


def _digits() -> Pictures:
    from sklearn import datasets  # a second's import that few tasks need

    found = datasets.load_digits()
    pixels = (found.images * (255 / 16)).round().astype(np.uint8)[:, None]
    labels = found.target.astype(np.uint8)
    train, test = stratified_splits(labels.astype(np.int64), (MOST_LABELS + VALIDATION, 797), seed=0)
    return Pictures(pixels[train], labels[train], pixels[test], labels[test])


PICTURES: dict[str, Callable[[], Pictures]] = {
    "cifar10": read_cifar10,
    "fashion_mnist": lambda: read_idx_set(FASHION_MNIST),
    "digits": _digits,
}
"""name -> reads them; ten classes each"""
PICTURE_SHIFTS = ("none", "noise", "contrast", "blur", "mirror", "turn", "stretch", "shuffle")


def picture_target(
    samples: str,
    *,
    shift: str,
    amount: float,
    size: int,
    noise: float,
    data: int,
    side: int,
    mean: tuple[float, ...],
    deviation: tuple[float, ...],
) -> TaskData:
    """Pictures after a shift, in three colours, enlarged to `side` pixels and standardised by the network's numbers.

    size   labelled samples to train on, `noise` of them with wrong labels
    data   rng seed of which pictures these are, and of what the shift draws
    """
    found = PICTURES[samples]()
    known, held_out = _drawn(found.train_labels, size, data)
    (tested,) = stratified_splits(
        found.test_labels.astype(np.int64), (min(TEST, len(found.test_labels)),), seed=0
    )
    pixels = [found.train[held_out], found.test[tested], found.train[known]]
    labels = [found.train_labels[held_out], found.test_labels[tested], found.train_labels[known]]
    rng = np.random.default_rng([data, _SHIFT_TAG])
    together = np.concatenate(pixels).astype(np.float64) / 255
    planes = together.reshape(
        -1, *together.shape[2:]
    )  # (sample x colour, row, column): the same for every colour
    shifted = shift_inputs(planes, shift, amount, rng).reshape(together.shape)
    ready = _enlarged(shifted, side, mean, deviation)
    parts = ready.split([len(part) for part in labels])
    return _task_data(parts, labels, 10, noise, data)


def _enlarged(
    pixels: NDArray[np.float64], side: int, mean: tuple[float, ...], deviation: tuple[float, ...]
) -> Tensor:
    colours = torch.from_numpy(pixels.astype(np.float32)).expand(-1, 3, -1, -1)
    large = F.interpolate(colours, size=(side, side), mode="bilinear", align_corners=False)
    return (large - torch.tensor(mean).view(1, 3, 1, 1)) / torch.tensor(deviation).view(1, 3, 1, 1)


# Texts


RATED = PackagedFile(
    name="hutto_ICWSM_2014.tar.gz",
    size=2_338_514,
    sha256="d5bb07d87474b3eb8d30b4deccbc23f19d742a6c5718fbacc65485b70b95c5fa",
    package="vaderSentiment==0.5",
    archive="vaderSentiment-0.5.zip",
    member="vaderSentiment-0.5/additional_resources/hutto_ICWSM_2014.tar.gz",
)
"""Sentences and their mean ratings, from -4 to 4."""
TEXTS: Mapping[str, str] = {
    "tweets": "tweets",
    "products": "amazonReviewSnippets",
    "films": "movieReviewSnippets",
    "editorials": "nytEditorialSnippets",
}
"""domain -> how the name of its file begins"""
TEXT_SHIFTS = ("none", "noise")
"""Of noise the amount is the share of letters that are others."""
CLEAR = 0.5
"""Mean ratings nearer to 0 are of neither class."""
LENGTH = 32
"""Tokens of a sample; longer texts are cut."""


def text_target(
    samples: str, vocabulary: bytes, *, shift: str, amount: float, size: int, noise: float, data: int
) -> TaskData:
    """Sentences of one domain as tokens, told apart by whether people found them negative (0) or positive (1).

    vocabulary  the tokeniser of the network that will read them, as a JSON file of `tokenizers`
    """
    texts, labels = read_rated(samples)
    pool, tested = stratified_splits(labels, (len(labels) - TEST, TEST), seed=0)
    known, held_out = _drawn(labels[pool], size, data)
    chosen = [pool[held_out], tested, pool[known]]
    rng = np.random.default_rng([data, _SHIFT_TAG])
    share = amount if shift == "noise" else 0.0
    parts = [encoded(vocabulary, [with_typos(texts[place], share, rng) for place in part]) for part in chosen]
    return _task_data(parts, [labels[part] for part in chosen], 2, noise, data)


def read_rated(domain: str) -> tuple[list[str], Labels]:
    """The sentences of a domain that are clearly of one sentiment, each once, and whether it is positive."""
    name = f"{TEXTS[domain]}_GroundTruth.txt"
    content = read_packaged("sentiment", RATED)
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as members:
        found = next((each for each in members if each.name.endswith(name)), None)
        opened = None if found is None else members.extractfile(found)
        if opened is None:
            raise DatasetCorrupt(RATED.name, f"no member {name}", str(RATED))
        lines = opened.read().decode("utf-8").splitlines()
    ratings: dict[str, float] = {}
    for line in filter(None, lines):
        _, rating, text = line.split("\t")
        ratings[text] = float(rating)
    clear = [text for text, rating in ratings.items() if abs(rating) >= CLEAR]
    return clear, np.array([ratings[text] > 0 for text in clear], np.int64)


def with_typos(text: str, share: float, rng: np.random.Generator) -> str:
    """The text with that share of its letters replaced by any."""
    if not share:
        return text
    wrong = rng.random(len(text)) < share
    letters = rng.integers(0, 26, len(text))
    return "".join(
        string.ascii_lowercase[letter] if bad and old.isalpha() else old
        for old, bad, letter in zip(text, wrong, letters, strict=True)
    )


def encoded(vocabulary: bytes, texts: list[str]) -> Tensor:
    """(text, position) tokens of `LENGTH` positions, 0 behind the end."""
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise BackboneError(
            "texts are cut into tokens by the package tokenizers, which is not installed: "
            f"{install('transformers')}"
        ) from error
    tokeniser = Tokenizer.from_str(vocabulary.decode("utf-8"))
    tokeniser.enable_truncation(LENGTH)
    tokeniser.enable_padding(length=LENGTH)
    return torch.tensor([each.ids for each in tokeniser.encode_batch(texts)])


# Both


def _drawn(labels: Labels | Bytes, size: int, data: int) -> tuple[Labels, Labels]:
    """Places of `size` samples to train on and 200 to validate on; the latter do not depend on the size."""
    held_out, known = stratified_splits(labels.astype(np.int64), (VALIDATION, MOST_LABELS), seed=data)
    return known[:size], held_out


def _task_data(
    parts: Sequence[Tensor],
    labels: Sequence[Labels | Bytes],
    classes: int,
    noise: float,
    data: int,
) -> TaskData:
    """Of what validates, tests and is trained on."""
    held_out, tested, known = (part.astype(np.int64) for part in labels)
    known = mislabel(known, noise, classes, data)
    splits = [
        Split(part.clone(), torch.tensor(names))
        for part, names in zip(parts, (held_out, tested, known), strict=True)
    ]
    return TaskData((Phase(0, splits[2], splits[0]),), SealedTest(splits[1]), classes)
