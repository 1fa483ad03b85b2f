"""A residual classifier over images."""

from collections.abc import Sequence

from torch import Tensor, nn


class ResNet(nn.Module):
    """A convolution, stages of residual blocks, global average, a linear head. Slots: `blocks.0`, `blocks.1`, ...

    Each stage but the first halves height and width. By default 175,258 parameters for 3 channels and 10 classes
    (He et al., 2016, with three stages of two blocks).

    widths  channels of each stage
    depth   blocks of each stage
    """

    def __init__(
        self, channels: int, classes: int, *, widths: Sequence[int] = (16, 32, 64), depth: int = 2
    ) -> None:
        super().__init__()
        if not widths or depth < 1:
            raise ValueError(
                f"widths {tuple(widths)} and depth {depth} must be at least one stage of at least one block"
            )
        self.stem = nn.Sequential(
            nn.Conv2d(channels, widths[0], 3, padding=1, bias=False), nn.BatchNorm2d(widths[0]), nn.ReLU()
        )
        blocks: list[nn.Module] = []
        size = widths[0]
        for stage, width in enumerate(widths):
            for place in range(depth):
                blocks.append(ResidualBlock(size, width, stride=2 if stage and not place else 1))
                size = width
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(size, classes)

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.blocks(self.stem(x))
        logits: Tensor = self.head(features.flatten(2).mean(2))
        return logits


class ResidualBlock(nn.Module):
    """Two convolutions around which the input goes; where shapes differ it goes through a convolution of size 1."""

    def __init__(self, size_in: int, size_out: int, *, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(size_in, size_out, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(size_out),
            nn.ReLU(),
            nn.Conv2d(size_out, size_out, 3, padding=1, bias=False),
            nn.BatchNorm2d(size_out),
        )
        self.around: nn.Module = nn.Identity()
        if stride > 1 or size_in != size_out:
            self.around = nn.Sequential(
                nn.Conv2d(size_in, size_out, 1, stride, bias=False), nn.BatchNorm2d(size_out)
            )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x) + self.around(x)
        return out.relu()
