"""Blueprints that weigh channels or positions by what the whole sample shows."""

import torch.nn.functional as F
from torch import Tensor, nn

from esper.kasmina.blueprints.parts import ChannelNorm, fraction
from esper.kasmina.blueprints.registry import blueprint
from esper.kasmina.blueprints.site import Site
from esper.leyline import BlueprintKind, Layout


class SqueezeExcite(nn.Module):
    """h weighed channel by channel: h sigmoid(W2 gelu(W1 mean(h)))."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        narrow = fraction(channels, 4)
        self.weigh = nn.Sequential(
            nn.Linear(channels, narrow), nn.GELU(), nn.Linear(narrow, channels), nn.Sigmoid()
        )

    def forward(self, h: Tensor) -> Tensor:
        positions = tuple(range(2, h.ndim))
        weights: Tensor = self.weigh(h.mean(positions))
        return h * weights.view(*weights.shape, *([1] * len(positions)))


class SelfAttention(nn.Module):
    """Multi-head self-attention over tokens, normalised on the way in."""

    def __init__(self, channels: int, *, causal: bool) -> None:
        super().__init__()
        self.heads = _heads(channels)
        self.causal = causal
        self.norm = ChannelNorm(channel_axis=-1)
        # No biases: softmax does not see a key's bias, so it would never learn.
        self.queries_keys_values = nn.Linear(channels, 3 * channels, bias=False)
        self.project = nn.Linear(channels, channels)

    def forward(self, h: Tensor) -> Tensor:
        batch, positions, channels = h.shape
        qkv: Tensor = self.queries_keys_values(self.norm(h))
        q, k, v = qkv.view(batch, positions, 3, self.heads, channels // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        projected: Tensor = self.project(mixed.transpose(1, 2).reshape(batch, positions, channels))
        return projected


def _heads(channels: int, head_width: int = 16) -> int:
    """The largest number of heads at least `head_width` wide that divides the channels."""
    most = max(1, channels // head_width)
    return next(heads for heads in range(most, 0, -1) if channels % heads == 0)


def _more_than_one_position(site: Site) -> bool:
    """Self-attention over a single token is constant in its queries and keys."""
    return site.layout is not Layout.TOKENS or site.positions is None or site.positions[0] > 1


@blueprint(
    "attention",
    layouts=(Layout.IMAGE, Layout.SERIES, Layout.TOKENS),
    kind=BlueprintKind.ATTENTION,
    causal=(Layout.TOKENS,),
    fits=_more_than_one_position,
)
def attention(site: Site) -> nn.Module:
    if site.layout is Layout.TOKENS:
        return SelfAttention(site.channels, causal=site.causal)
    return SqueezeExcite(site.channels)
