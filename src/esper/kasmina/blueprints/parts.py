"""Layers that blueprints share, written once for all layouts."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from esper.kasmina.blueprints.site import Site
from esper.leyline import Layout

KERNEL = 3


class ChannelNorm(nn.Module):
    """h / rms(h) over the channels of each position.

    It sees one sample and one position at a time, so it is causal and keeps no statistics, and unlike
    LayerNorm it does not vanish at width 1.
    """

    def __init__(self, channel_axis: int) -> None:
        super().__init__()
        self.channel_axis = channel_axis

    def forward(self, h: Tensor) -> Tensor:
        mean_square = h.float().square().mean(self.channel_axis, keepdim=True)
        return h * torch.rsqrt(mean_square + 1e-5).to(h.dtype)


class CausalConv1d(nn.Conv1d):
    """A convolution over (batch, channel, position) that reads the position itself and those before it."""

    def forward(self, h: Tensor) -> Tensor:
        return super().forward(F.pad(h, (self.kernel_size[0] - 1, 0)))


class OverTokens(nn.Module):
    """A series layer applied to tokens."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, h: Tensor) -> Tensor:
        mixed: Tensor = self.layer(h.transpose(1, 2))
        return mixed.transpose(1, 2)


def convolution(site: Site, channels_in: int, channels_out: int, *, groups: int = 1) -> nn.Module:
    """A 3-wide convolution over the positions that keeps their number."""
    if site.layout is Layout.IMAGE:
        return nn.Conv2d(channels_in, channels_out, KERNEL, padding=KERNEL // 2, groups=groups)
    layer: nn.Module
    if site.causal:
        layer = CausalConv1d(channels_in, channels_out, KERNEL, groups=groups)
    else:
        layer = nn.Conv1d(channels_in, channels_out, KERNEL, padding=KERNEL // 2, groups=groups)
    return OverTokens(layer) if site.layout is Layout.TOKENS else layer


def pointwise(site: Site, channels_in: int, channels_out: int, *, bias: bool = True) -> nn.Module:
    """A linear map of the channels, the same at every position."""
    if site.layout is Layout.IMAGE:
        return nn.Conv2d(channels_in, channels_out, 1, bias=bias)
    if site.layout is Layout.SERIES:
        return nn.Conv1d(channels_in, channels_out, 1, bias=bias)
    return nn.Linear(channels_in, channels_out, bias=bias)


def fraction(channels: int, divisor: int) -> int:
    """A share of the width, at least one channel."""
    return max(1, channels // divisor)
