"""A convolutional classifier over series or images."""

from collections.abc import Sequence
from typing import Literal

from torch import Tensor, nn


class ConvNet(nn.Module):
    """Blocks of conv, norm, ReLU and pool; global average; a linear head. Slots: `blocks.0`, `blocks.1`, ...

    dims    1 for series (batch, channel, position), 2 for images (batch, channel, height, width)
    pools   how much each block shrinks the positions
    norm    "group" (one group, no batch statistics), "batch" or "none"
    """

    def __init__(
        self,
        channels: int,
        classes: int,
        *,
        dims: Literal[1, 2],
        widths: Sequence[int] = (8, 16, 16),
        pools: Sequence[int] = (1, 2, 2),
        kernel: int = 3,
        norm: Literal["group", "batch", "none"] = "group",
    ) -> None:
        super().__init__()
        if len(widths) != len(pools):
            raise ValueError(
                f"widths {tuple(widths)} and pools {tuple(pools)} must have one entry per block each"
            )
        if dims not in (1, 2):
            raise ValueError(f"dims must be 1 (series) or 2 (images), not {dims!r}")
        if norm not in ("group", "batch", "none"):
            raise ValueError(f'norm must be "group", "batch" or "none", not {norm!r}')
        sizes = (channels, *widths)
        self.blocks = nn.Sequential(
            *(
                _block(size_in, size_out, dims=dims, pool=pool, kernel=kernel, norm=norm)
                for size_in, size_out, pool in zip(sizes[:-1], sizes[1:], pools, strict=True)
            )
        )
        self.head = nn.Linear(sizes[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.blocks(x)
        logits: Tensor = self.head(features.flatten(2).mean(2))
        return logits


def _block(size_in: int, size_out: int, *, dims: int, pool: int, kernel: int, norm: str) -> nn.Sequential:
    conv, batch_norm, max_pool = (
        (nn.Conv1d, nn.BatchNorm1d, nn.MaxPool1d) if dims == 1 else (nn.Conv2d, nn.BatchNorm2d, nn.MaxPool2d)
    )
    layers: list[nn.Module] = [conv(size_in, size_out, kernel, padding=kernel // 2, bias=norm == "none")]
    if norm == "group":
        layers.append(nn.GroupNorm(1, size_out))
    elif norm == "batch":
        layers.append(batch_norm(size_out))
    layers.append(nn.ReLU())
    if pool > 1:
        layers.append(max_pool(pool))
    return nn.Sequential(*layers)
