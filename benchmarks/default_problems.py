"""Ten small problems with an ordinary network each, on which no rule was tuned: what `study_defaults.py` plays.

Nothing is downloaded: the data come with scikit-learn or are drawn here, anew for every seed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from sklearn.datasets import (
    load_breast_cancer,
    load_diabetes,
    load_digits,
    make_friedman1,
    make_gaussian_quantiles,
)
from torch import Tensor, nn

Split = tuple[Tensor, Tensor]
"""Inputs, and classes (sample,) or numbers (sample, 1)."""
Splits = tuple[Split, Split, Split]
"""Training, validation, test."""
Array = NDArray[np.float64]
Numbers = Array | NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Data, a network in any width, and how it is trained."""

    name: str
    about: str
    draw: Callable[[int], Splits]
    """From a seed."""
    network: Callable[[int], nn.Module]
    """By width; drawn from torch's global generator."""
    width: int
    slots: Sequence[str]
    epochs: int = 20
    batch: int = 64
    rate: float = 5e-3
    schedule: Literal["constant", "cosine", "one cycle"] = "constant"


# Networks


def perceptron(inputs: int, outputs: int, width: int) -> nn.Module:
    """Two hidden layers."""
    return nn.Sequential(
        nn.Sequential(nn.Linear(inputs, width), nn.ReLU()),
        nn.Sequential(nn.Linear(width, width), nn.ReLU()),
        nn.Linear(width, outputs),
    )


def convolutions(dims: Literal[1, 2], outputs: int, width: int) -> nn.Sequential:
    """Three convolutions, the mean over positions, a linear head."""
    conv, norm = (nn.Conv1d, nn.BatchNorm1d) if dims == 1 else (nn.Conv2d, nn.BatchNorm2d)
    blocks = [
        nn.Sequential(conv(inputs, width, 3, stride=stride, padding=1), norm(width), nn.ReLU())
        for inputs, stride in ((1, 1), (width, 2), (width, 2))
    ]
    pool = nn.AdaptiveAvgPool1d(1) if dims == 1 else nn.AdaptiveAvgPool2d(1)
    return nn.Sequential(*blocks, pool, nn.Flatten(), nn.Linear(width, outputs))


class Reader(nn.Module):
    """A transformer of two blocks over tokens (sample, position), and a head on their mean."""

    def __init__(self, vocabulary: int, length: int, outputs: int, width: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(0.1 * torch.randn(length, width))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 2, 2 * width, 0.0, batch_first=True, norm_first=True)
            for _ in range(2)
        )
        self.head = nn.Linear(width, outputs)

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.tokens(tokens) + self.places
        for block in self.blocks:
            h = block(h)
        answer: Tensor = self.head(h.mean(1))
        return answer


# Data


def split(
    inputs: Numbers, targets: Numbers, sizes: tuple[int, int], seed: int, *, numbers: bool = False
) -> Splits:
    """Rows in an order of the seed's; columns of a table, and numbers to predict, in units of the training rows."""
    order = np.random.default_rng(seed).permutation(len(inputs))
    x, y = inputs[order], targets[order]
    if x.ndim == 2 and x.dtype.kind == "f":
        x = (x - x[: sizes[0]].mean(0)) / (x[: sizes[0]].std(0) + 1e-9)
    if numbers:
        y = ((y - y[: sizes[0]].mean()) / y[: sizes[0]].std())[:, None]
    asked = torch.as_tensor(x, dtype=torch.float32 if x.dtype.kind == "f" else torch.int64)
    wanted = torch.as_tensor(y, dtype=torch.float32 if numbers else torch.int64)
    first, second = sizes[0], sum(sizes)
    return (
        (asked[:first], wanted[:first]),
        (asked[first:second], wanted[first:second]),
        (asked[second:], wanted[second:]),
    )


def quantiles(seed: int) -> Splits:
    rows, classes = make_gaussian_quantiles(n_samples=2000, n_features=6, n_classes=4, random_state=seed)
    return split(rows, classes, (600, 200), seed)


def breast_cancer(seed: int) -> Splits:
    found = load_breast_cancer()
    return split(found.data, found.target, (250, 100), seed)


def diabetes(seed: int) -> Splits:
    found = load_diabetes()
    return split(found.data, found.target, (200, 80), seed, numbers=True)


def friedman(seed: int) -> Splits:
    rows, targets = make_friedman1(n_samples=2000, n_features=10, noise=1.0, random_state=seed)
    return split(rows, targets, (600, 200), seed, numbers=True)


def digits(seed: int) -> Splits:
    found = load_digits()
    return split(found.images[:, None] / 16, found.target, (500, 200), seed)


def dots(seed: int) -> Splits:
    """Images 10 x 10 of two soft dots in noise; the target is their distance."""
    rng = np.random.default_rng(seed)
    places = rng.uniform(1.0, 8.0, (1800, 2, 2))  # (sample, dot, axis)
    grid = np.moveaxis(np.mgrid[:10, :10], 0, -1)  # (row, column, axis)
    gaps = ((grid - places[:, :, None, None]) ** 2).sum(-1)  # (sample, dot, row, column)
    images = np.exp(-gaps).sum(1) + rng.normal(0.0, 0.1, (1800, 10, 10))
    distance = np.linalg.norm(places[:, 0] - places[:, 1], axis=-1)
    return split(images[:, None], distance, (600, 200), seed, numbers=True)


def bumps(seed: int) -> Splits:
    """Series of 40 with a narrow and a wide bump, up or down, in noise: which comes first, and its sign."""
    rng = np.random.default_rng(seed)
    classes = rng.integers(0, 4, 2000)
    narrow_first, up = classes % 2 == 0, classes // 2 == 0
    early, late = rng.uniform(5, 17, 2000), rng.uniform(22, 35, 2000)
    narrow, wide = np.where(narrow_first, early, late), np.where(narrow_first, late, early)
    sign_first, sign_last = np.where(up, 1.0, -1.0), rng.choice([-1.0, 1.0], 2000)
    time = np.arange(40)

    def bump(centre: Array, width: float, sign: Array) -> Array:
        return sign[:, None] * np.exp(-(((time - centre[:, None]) / width) ** 2))

    series = bump(narrow, 1.5, np.where(narrow_first, sign_first, sign_last))
    series += bump(wide, 4.0, np.where(narrow_first, sign_last, sign_first))
    series += rng.normal(0.0, 0.3, series.shape)
    return split(series[:, None], classes, (600, 200), seed)


def sines(seed: int) -> Splits:
    """24 values of a sum of three sines in noise; the target is the value 4 steps ahead, without noise."""
    rng = np.random.default_rng(seed)
    periods = np.array([5.0, 9.0, 16.0])
    phases, sizes = rng.uniform(0.0, 2 * np.pi, (2000, 3)), rng.uniform(0.3, 1.0, (2000, 3))
    time = np.arange(28)
    waves = (sizes[..., None] * np.sin(2 * np.pi * time / periods[:, None] + phases[..., None])).sum(1)
    seen = waves[:, :24] + rng.normal(0.0, 0.3, (2000, 24))
    return split(seen[:, None], waves[:, 27], (600, 200), seed, numbers=True)


def sentences(seed: int) -> Splits:
    """12 tokens by a small grammar, (article adjective* noun verb article noun)*: is the subject's number the verb's?

    Half of the sentences disagree in one verb. Tokens: 0 end, 1-2 articles, 3-5 adjectives, 6-8 and 9-11 nouns in
    singular and plural, 12-13 and 14-15 verbs in singular and plural.
    """
    rng = np.random.default_rng(seed)
    texts, agree = np.zeros((2000, 12), dtype=np.int64), rng.integers(0, 2, 2000)
    for text, right in zip(texts, agree, strict=True):
        plural = rng.integers(0, 2)
        subject = [
            rng.integers(1, 3),
            *rng.integers(3, 6, rng.integers(0, 4)),
            6 + 3 * plural + rng.integers(0, 3),
        ]
        object_ = [rng.integers(1, 3), *rng.integers(3, 6, rng.integers(0, 3)), rng.integers(6, 12)]
        verb = 12 + 2 * (plural if right else 1 - plural) + rng.integers(0, 2)
        words = [*subject, verb, *object_]
        text[: len(words)] = words
    return split(texts, agree, (800, 200), seed)


# A network that was trained before on upright digits, and now meets them turned and inverted, with few labels


@cache
def pretrained() -> dict[str, Tensor]:
    images, classes = digits(99)[0]
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(99)
        network = convolutions(2, 10, 12)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    order = torch.Generator().manual_seed(99)
    for _ in range(15):
        for rows in torch.randperm(len(images), generator=order).split(64):
            optimizer.zero_grad()
            F.cross_entropy(network(images[rows]), classes[rows]).backward()
            optimizer.step()
    return network.state_dict()


def turned_digits(seed: int) -> Splits:
    found = load_digits()
    images = 1.0 - np.rot90(found.images, axes=(1, 2)) / 16
    return split(images[:, None], found.target, (200, 200), seed)


def frozen(width: int) -> nn.Module:
    """The trained convolutions, frozen, below a head with a hidden layer of this width."""
    trunk = convolutions(2, 10, 12)
    if next(trunk.parameters()).device.type != "meta":
        trunk.load_state_dict(pretrained())
    trunk.requires_grad_(False)
    return nn.Sequential(
        *list(trunk)[:-1], nn.Sequential(nn.Linear(12, width), nn.ReLU(), nn.Linear(width, 10))
    )


LAYERS, BLOCKS = ("0", "1"), ("0", "1", "2")
PROBLEMS = (
    Problem(
        name="quantiles",
        about="table, 4 classes",
        draw=quantiles,
        network=lambda width: perceptron(6, 4, width),
        width=10,
        slots=LAYERS,
    ),
    Problem(
        name="breast_cancer",
        about="table, 2 classes, a network that is big enough",
        draw=breast_cancer,
        network=lambda width: perceptron(30, 2, width),
        width=64,
        slots=LAYERS,
        rate=1e-3,
    ),
    Problem(
        name="diabetes",
        about="table, a number, 200 rows of it",
        draw=diabetes,
        network=lambda width: perceptron(10, 1, width),
        width=16,
        slots=LAYERS,
        batch=32,
    ),
    Problem(
        name="friedman",
        about="table, a number",
        draw=friedman,
        network=lambda width: perceptron(10, 1, width),
        width=10,
        slots=LAYERS,
        rate=1e-2,
        schedule="one cycle",
    ),
    Problem(
        name="digits",
        about="images, 10 classes",
        draw=digits,
        network=lambda width: convolutions(2, 10, width),
        width=8,
        slots=BLOCKS,
        rate=1e-2,
        schedule="cosine",
    ),
    Problem(
        name="dots",
        about="images, a number",
        draw=dots,
        network=lambda width: convolutions(2, 1, width),
        width=8,
        slots=BLOCKS,
        rate=1e-2,
        schedule="cosine",
    ),
    Problem(
        name="bumps",
        about="series, 4 classes",
        draw=bumps,
        network=lambda width: convolutions(1, 4, width),
        width=8,
        slots=BLOCKS,
        rate=5e-3,
    ),
    Problem(
        name="sines",
        about="series, a forecast",
        draw=sines,
        network=lambda width: convolutions(1, 1, width),
        width=8,
        slots=BLOCKS,
        rate=1e-2,
        schedule="one cycle",
    ),
    Problem(
        name="sentences",
        about="text, 2 classes",
        draw=sentences,
        network=lambda width: Reader(16, 12, 2, 2 * width),  # two heads
        width=4,
        slots=("blocks.*",),
        rate=5e-3,
        schedule="cosine",
    ),
    Problem(
        name="turned_digits",
        about="images, 10 classes, a frozen network with a head that learns",
        draw=turned_digits,
        network=frozen,
        width=16,
        slots=BLOCKS,
        rate=1e-2,
        batch=32,
        schedule="cosine",
    ),
)
