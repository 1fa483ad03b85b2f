"""Hosts made from a few drawn numbers: one of four kinds, for vectors, series, images and tokens alike."""

from dataclasses import dataclass
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

Kind = Literal["mlp", "conv", "mixer", "attention"]
Norm = Literal["layer", "batch", "none"]
Pool = Literal["mean", "max"]
OVER_TOKENS = ("mixer", "attention")
"""Kinds whose blocks pass (batch, position, channel)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostShape:
    """What a drawn host looks like."""

    kind: Kind
    width: int
    """Channels of every block."""
    depth: int
    """Blocks."""
    norm: Norm = "layer"
    """Over the channels ("layer"), over the batch, or none; over tokens there is no batch norm."""
    pool: Pool = "mean"
    """How positions are pooled at the end; convolutions also shrink them twice on the way."""
    kernel: int = 3
    """Positions along each axis that a convolution reads."""

    def __post_init__(self) -> None:
        if self.kind in OVER_TOKENS and self.norm == "batch":
            raise ValueError(f"HostShape.norm must be layer or none for kind {self.kind}, not 'batch'")
        if self.kind == "attention" and self.width % 2:
            raise ValueError(f"HostShape.width must be even for kind attention (two heads), not {self.width}")
        if self.kernel % 2 == 0:
            raise ValueError(f"HostShape.kernel must be odd, not {self.kernel}")


class DrawnHost(nn.Module):
    """A stem to the width, blocks that keep it, pooled positions, a linear head. Slots: `blocks.0`, `blocks.1`, ...

    sample      the shape of one sample: (feature,), (channel, position), (channel, height, width), or (position,) of
                tokens
    outputs     classes or quantities
    vocabulary  how many tokens there are; None where samples are numbers
    """

    def __init__(
        self, shape: HostShape, sample: tuple[int, ...], outputs: int, *, vocabulary: int | None = None
    ) -> None:
        super().__init__()
        self.pool: Pool = shape.pool
        self.channels_last = shape.kind in OVER_TOKENS
        self.stem = _stem(shape, sample, vocabulary)
        self.blocks = nn.Sequential(*_blocks(shape, sample, vocabulary))
        self.head = nn.Linear(shape.width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.blocks(self.stem(x))
        if h.ndim > 2:
            h = h if self.channels_last else h.flatten(2).transpose(1, 2)  # (batch, position, channel)
            h = h.mean(1) if self.pool == "mean" else h.amax(1)
        outputs: Tensor = self.head(h)
        return outputs


# Stems


def _stem(shape: HostShape, sample: tuple[int, ...], vocabulary: int | None) -> nn.Module:
    width = shape.width
    if vocabulary is not None:
        embedded = EmbeddedTokens(vocabulary, sample[0], width)
        if shape.kind == "mlp":
            return nn.Sequential(embedded, nn.Flatten(), nn.Linear(sample[0] * width, width))
        return nn.Sequential(embedded, ChannelsSecond()) if shape.kind == "conv" else embedded
    if shape.kind == "mlp":
        size = 1
        for length in sample:
            size *= length
        return nn.Sequential(nn.Flatten(), nn.Linear(size, width))
    if shape.kind == "conv":
        if len(sample) == 1:
            raise ValueError("a convolution needs positions: a vector has none, choose another kind")
        conv = nn.Conv1d if len(sample) == 2 else nn.Conv2d
        return nn.Sequential(conv(sample[0], width, shape.kernel, padding=shape.kernel // 2), nn.ReLU())
    return EmbeddedFeatures(sample[0], width) if len(sample) == 1 else Patches(sample, width)


class EmbeddedTokens(nn.Module):
    """(batch, position) tokens to (batch, position, channel), with learned positions."""

    def __init__(self, vocabulary: int, length: int, width: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(_small(length, width))

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.tokens(x) + self.positions
        return h


class EmbeddedFeatures(nn.Module):
    """(batch, feature) to (batch, feature, channel): each number times a vector of its own, plus another."""

    def __init__(self, features: int, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(_small(features, width, size=1.0))
        self.shift = nn.Parameter(_small(features, width, size=0.5))

    def forward(self, x: Tensor) -> Tensor:
        return x.unsqueeze(-1) * self.scale + self.shift


class Patches(nn.Module):
    """(batch, channel, positions...) cut into patches: tokens (batch, patch, channel), with learned positions."""

    def __init__(self, sample: tuple[int, ...], width: int) -> None:
        super().__init__()
        side = 4 if len(sample) == 2 else max(2, sample[-1] // 4)
        conv = nn.Conv1d if len(sample) == 2 else nn.Conv2d
        self.cut = conv(sample[0], width, side, stride=side)
        count = 1
        for length in sample[1:]:
            count *= length // side
        self.positions = nn.Parameter(_small(count, width))

    def forward(self, x: Tensor) -> Tensor:
        patches: Tensor = self.cut(x)
        return patches.flatten(2).transpose(1, 2) + self.positions


class ChannelsSecond(nn.Module):
    """(batch, position, channel) to (batch, channel, position)."""

    def forward(self, h: Tensor) -> Tensor:
        return h.transpose(1, 2)


def _small(*shape: int, size: float = 0.1) -> Tensor:
    return nn.init.normal_(nn.Parameter().new_empty(shape), std=size)


# Blocks


def _blocks(shape: HostShape, sample: tuple[int, ...], vocabulary: int | None) -> list[nn.Module]:
    if shape.kind == "mlp":
        return [
            Skip(nn.Linear(shape.width, shape.width), *_flat_norm(shape), nn.ReLU())
            for _ in range(shape.depth)
        ]
    if shape.kind == "conv":
        dims = 1 if vocabulary is not None else len(sample) - 1
        return _conv_blocks(shape, dims, length=sample[-1])
    length = sample[0] if len(sample) == 1 else Patches(sample, 1).positions.shape[0]
    return [TokenBlock(shape, length) for _ in range(shape.depth)]


class Skip(nn.Sequential):
    """x + what the layers make of it."""

    def forward(self, x: Tensor) -> Tensor:
        h = x
        for layer in self:
            h = layer(h)
        return x + h


def _flat_norm(shape: HostShape) -> list[nn.Module]:
    norms = {"layer": nn.LayerNorm, "batch": nn.BatchNorm1d}
    return [norms[shape.norm](shape.width)] if shape.norm in norms else []


def _conv_blocks(shape: HostShape, dims: int, length: int) -> list[nn.Module]:
    conv, batch_norm = (nn.Conv1d, nn.BatchNorm1d) if dims == 1 else (nn.Conv2d, nn.BatchNorm2d)
    pools = {
        ("mean", 1): nn.AvgPool1d,
        ("mean", 2): nn.AvgPool2d,
        ("max", 1): nn.MaxPool1d,
        ("max", 2): nn.MaxPool2d,
    }
    shrinks = {-(-shape.depth // 3), -(-2 * shape.depth // 3)} - {shape.depth}
    blocks: list[nn.Module] = []
    for place in range(1, shape.depth + 1):
        norm = [nn.GroupNorm(1, shape.width)] if shape.norm == "layer" else []
        layers = [
            conv(shape.width, shape.width, shape.kernel, padding=shape.kernel // 2),
            *([batch_norm(shape.width)] if shape.norm == "batch" else norm),
            nn.ReLU(),
        ]
        shrinking = [pools[shape.pool, dims](2)] if place in shrinks and length >= 4 else []
        length = length // 2 if shrinking else length
        blocks.append(nn.Sequential(Skip(*layers), *shrinking))
    return blocks


class TokenBlock(nn.Module):
    """Positions mixed by attention or by a learned map, then each position by itself; both beside a skip."""

    def __init__(self, shape: HostShape, length: int) -> None:
        super().__init__()
        width = shape.width
        self.first, self.second = (
            nn.LayerNorm(width) if shape.norm == "layer" else nn.Identity() for _ in range(2)
        )
        self.mix = Attention(width) if shape.kind == "attention" else PositionMap(length)
        self.each = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))

    def forward(self, h: Tensor) -> Tensor:
        h = h + self.mix(self.first(h))
        out: Tensor = h + self.each(self.second(h))
        return out


class Attention(nn.Module):
    """Self-attention with two heads."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.queries_keys_values = nn.Linear(width, 3 * width, bias=False)
        self.project = nn.Linear(width, width)

    def forward(self, h: Tensor) -> Tensor:
        batch, length, width = h.shape
        qkv: Tensor = self.queries_keys_values(h)
        q, k, v = qkv.view(batch, length, 3, 2, width // 2).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v)
        out: Tensor = self.project(mixed.transpose(1, 2).reshape(batch, length, width))
        return out


class PositionMap(nn.Module):
    """A learned map over the positions, the same for every channel."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.over_positions = nn.Linear(length, length)

    def forward(self, h: Tensor) -> Tensor:
        out: Tensor = self.over_positions(h.transpose(1, 2)).transpose(1, 2)
        return F.relu(out)
