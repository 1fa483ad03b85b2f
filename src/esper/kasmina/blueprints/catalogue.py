"""The built-in blueprints, and the layers they share, written once for all layouts."""

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from esper.kasmina.blueprints.registry import Site, blueprint
from esper.kasmina.tree import is_seed_name
from esper.leyline import BlueprintKind, Layout

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


class ChannelsFirst(nn.Module):
    """A layer over (batch, channel, positions...) applied to (batch, positions..., channel)."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, h: Tensor) -> Tensor:
        mixed: Tensor = self.layer(h.movedim(-1, 1))
        return mixed.movedim(1, -1)


class BatchFirst(nn.Module):
    """A layer over (batch, position, channel) applied to (position, batch, channel)."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, h: Tensor) -> Tensor:
        mixed: Tensor = self.layer(h.transpose(0, 1))
        return mixed.transpose(0, 1)


_CONVOLUTIONS: dict[int, type[nn.Conv1d] | type[nn.Conv2d] | type[nn.Conv3d]] = {
    1: nn.Conv1d,
    2: nn.Conv2d,
    3: nn.Conv3d,
}


def in_layout(site: Site, layer: nn.Module) -> nn.Module:
    """A layer over (batch, channel, positions...) as one for activations of the site's layout."""
    if site.channel_axis != -1:
        return layer
    return BatchFirst(ChannelsFirst(layer)) if site.layout is Layout.TIME_MAJOR else ChannelsFirst(layer)


def convolution(site: Site, channels_in: int, channels_out: int, *, groups: int = 1) -> nn.Module:
    """A 3-wide convolution over the positions that keeps their number."""
    layer: nn.Module
    if site.causal:
        layer = CausalConv1d(channels_in, channels_out, KERNEL, groups=groups)
    else:
        kind = _CONVOLUTIONS[site.layout.position_count]
        layer = kind(channels_in, channels_out, KERNEL, padding=KERNEL // 2, groups=groups)
    return in_layout(site, layer)


def pointwise(site: Site, channels_in: int, channels_out: int, *, bias: bool = True) -> nn.Module:
    """A linear map of the channels, the same at every position."""
    if site.channel_axis == -1:
        return nn.Linear(channels_in, channels_out, bias=bias)
    return _CONVOLUTIONS[site.layout.position_count](channels_in, channels_out, 1, bias=bias)


def fraction(channels: int, divisor: int) -> int:
    """A share of the width, at least one channel."""
    return max(1, channels // divisor)


# Blueprints that weigh channels or positions by what the whole sample shows.


class SqueezeExcite(nn.Module):
    """h weighed channel by channel: h sigmoid(W2 gelu(W1 mean(h)))."""

    def __init__(self, channels: int, axes: tuple[int, ...]) -> None:
        super().__init__()
        self.axes = axes
        narrow = fraction(channels, 4)
        self.weigh = nn.Sequential(
            nn.Linear(channels, narrow), nn.GELU(), nn.Linear(narrow, channels), nn.Sigmoid()
        )

    def forward(self, h: Tensor) -> Tensor:
        weights: Tensor = self.weigh(h.mean(self.axes))
        for _ in self.axes:
            weights = weights.unsqueeze(-1)
        return h * weights


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


_SEQUENCES = (Layout.TOKENS, Layout.TIME_MAJOR)
_PLANES = (Layout.IMAGE, Layout.VOLUME, Layout.IMAGE_LAST, Layout.VOLUME_LAST)
_GRIDS = (*_PLANES, Layout.SERIES)


def _more_than_one_position(site: Site) -> bool:
    """Self-attention over a single token is constant in its queries and keys."""
    return site.layout not in _SEQUENCES or site.positions is None or site.positions[0] > 1


@blueprint(
    "attention",
    layouts=(*_GRIDS, *_SEQUENCES),
    kind=BlueprintKind.ATTENTION,
    causal=_SEQUENCES,
    fits=_more_than_one_position,
)
def attention(site: Site) -> nn.Module:
    """Self-attention over tokens; elsewhere squeeze and excitation of the channels."""
    if site.layout in _SEQUENCES:
        over_tokens = SelfAttention(site.channels, causal=site.causal)
        return BatchFirst(over_tokens) if site.layout is Layout.TIME_MAJOR else over_tokens
    return in_layout(site, SqueezeExcite(site.channels, axes=tuple(range(2, len(site.layout.axes)))))


# Blueprints that look at neighbouring positions.


@blueprint(
    "depthwise",
    layouts=(*_GRIDS, *_SEQUENCES),
    kind=BlueprintKind.CONV,
    causal=(Layout.SERIES, *_SEQUENCES),
)
def depthwise(site: Site) -> nn.Module:
    """A convolution of each channel by itself, then a pointwise map."""
    width = site.channels
    return nn.Sequential(
        convolution(site, width, width, groups=width), nn.GELU(), pointwise(site, width, width)
    )


@blueprint("bottleneck", layouts=_GRIDS, kind=BlueprintKind.CONV, causal=(Layout.SERIES,))
def bottleneck(site: Site) -> nn.Module:
    """A convolution at a quarter of the width, between two pointwise maps."""
    width, narrow = site.channels, fraction(site.channels, 4)
    return nn.Sequential(
        pointwise(site, width, narrow),
        nn.GELU(),
        convolution(site, narrow, narrow),
        nn.GELU(),
        pointwise(site, narrow, width),
    )


@blueprint("conv_small", layouts=_GRIDS, kind=BlueprintKind.CONV, causal=(Layout.SERIES,))
def conv_small(site: Site) -> nn.Module:
    """A convolution to half the width, then a pointwise map back."""
    width, narrow = site.channels, fraction(site.channels, 2)
    return nn.Sequential(convolution(site, width, narrow), nn.GELU(), pointwise(site, narrow, width))


@blueprint("conv_light", layouts=_GRIDS, kind=BlueprintKind.CONV, causal=(Layout.SERIES,))
def conv_light(site: Site) -> nn.Module:
    """One convolution at full width."""
    return nn.Sequential(convolution(site, site.channels, site.channels), nn.GELU())


@blueprint("conv_heavy", layouts=_GRIDS, kind=BlueprintKind.CONV, causal=(Layout.SERIES,))
def conv_heavy(site: Site) -> nn.Module:
    """Two convolutions at full width."""
    width = site.channels
    return nn.Sequential(convolution(site, width, width), nn.GELU(), convolution(site, width, width))


# Blueprints that move information between any two positions of a fixed grid.


class Mixer(nn.Module):
    """A learned map over the positions, shared by all channels; over images and volumes one axis after another."""

    def __init__(self, positions: tuple[int, ...]) -> None:
        super().__init__()
        self.positions = positions
        self.along = nn.ModuleList(nn.Linear(length, length) for length in positions)
        self.activation = nn.GELU()

    def forward(self, h: Tensor) -> Tensor:
        for axis, (length, layer) in enumerate(zip(self.positions, self.along, strict=True), start=2):
            torch._assert(
                h.shape[axis] == length,
                f"a mixer seed was born for positions {self.positions} and met others: it needs a fixed length. "
                "Pad the input, or keep mixers out with wrap(..., blueprints=[...])",
            )
            h = layer(h.transpose(axis, -1)).transpose(axis, -1)
        mixed: Tensor = self.activation(h)
        return mixed


@blueprint(
    "mixer",
    layouts=_GRIDS,
    kind=BlueprintKind.MIXER,
    fits=lambda site: site.positions is not None,
)
def mixer(site: Site) -> nn.Module:
    """A learned map over the positions."""
    assert site.positions is not None
    return in_layout(site, Mixer(site.positions))


# Blueprints that work on each position alone.


_ALL = tuple(Layout)
_VECTORS = (*_SEQUENCES, Layout.IMAGE_LAST, Layout.VOLUME_LAST, Layout.FLAT, Layout.ROWS)
_RANK, _LARGE_RANK = 4, 16


@blueprint("norm", layouts=_ALL, kind=BlueprintKind.NORM, causal=True)
def norm(site: Site) -> nn.Module:
    """The activation normalised over its channels."""
    return ChannelNorm(site.channel_axis)


@blueprint("lora", layouts=_ALL, kind=BlueprintKind.POINTWISE, causal=True)
def lora(site: Site) -> nn.Module:
    """A pointwise map of rank 4."""
    return _low_rank(site, _RANK)


@blueprint("lora_large", layouts=_ALL, kind=BlueprintKind.POINTWISE, causal=True)
def lora_large(site: Site) -> nn.Module:
    """A pointwise map of rank 16."""
    return _low_rank(site, _LARGE_RANK)


@blueprint("mlp_small", layouts=_VECTORS, kind=BlueprintKind.POINTWISE, causal=True)
def mlp_small(site: Site) -> nn.Module:
    """Two pointwise layers, half as wide inside."""
    return _mlp(site, fraction(site.channels, 2))


@blueprint("mlp", layouts=_VECTORS, kind=BlueprintKind.POINTWISE, causal=True)
def mlp(site: Site) -> nn.Module:
    """Two pointwise layers, twice as wide inside."""
    return _mlp(site, 2 * site.channels)


def _low_rank(site: Site, rank: int) -> nn.Module:
    rank = min(rank, site.channels)
    return nn.Sequential(
        pointwise(site, site.channels, rank, bias=False), pointwise(site, rank, site.channels, bias=False)
    )


def _mlp(site: Site, hidden: int) -> nn.Module:
    layers = [pointwise(site, site.channels, hidden), nn.GELU(), pointwise(site, hidden, site.channels)]
    # A residual stream of tokens grows with depth; the size of a flat activation is information.
    if site.layout.position_count:
        layers.insert(0, ChannelNorm(site.channel_axis))
    return nn.Sequential(*layers)


def bare_copy(module: nn.Module, device: torch.device) -> nn.Module:
    """A deep copy on `device`, without hooks and seeds; on "meta", of the structure alone."""
    memo: dict[int, object] = {}
    for part in module.modules():
        for hooks in (part._forward_hooks, part._forward_pre_hooks, part._backward_hooks):
            memo[id(hooks)] = type(hooks)()
        for kept in part.__dict__.values():
            if isinstance(kept, Tensor) and not kept.is_leaf:  # an activation that the module keeps
                memo[id(kept)] = kept.detach()
    for parameter in module.parameters():
        memo[id(parameter)] = nn.Parameter(parameter.detach().to(device, copy=True))
    for buffer in module.buffers():
        memo[id(buffer)] = buffer.detach().to(device, copy=True)
    bare = copy.deepcopy(module, memo)
    for part in bare.modules():
        for name in [name for name in part._modules if is_seed_name(name)]:
            del part._modules[name]
    return bare


@blueprint(
    "widen",
    layouts=tuple(Layout),
    kind=BlueprintKind.COPY,
    causal=True,
    fits=lambda site: site.copyable,
    reads_input=True,
)
def widen(site: Site) -> nn.Module:
    """The copy's weights are drawn anew; batch norm becomes channel norm, dropout and in-place work go.

    Parameters that no `reset_parameters` covers keep the values they had in the host, unless those are all zero.
    """
    assert site.module is not None
    here = torch.empty(()).device  # weights are drawn where seeds are built, never on the host's device
    twin = _fit_for_a_seed(bare_copy(site.module, here))
    if here.type != "meta":
        for part in twin.modules():
            _draw_anew(part)
    return twin


def _draw_anew(module: nn.Module) -> None:
    """New weights for the parameters a module holds itself."""
    for reset in ("reset_parameters", "_reset_parameters"):  # torch.nn uses both names
        if hasattr(module, reset):
            getattr(module, reset)()
            return
    for parameter in module.parameters(recurse=False):
        # A gate that starts at zero would be a second zero before the seed's scale, and never learn.
        if parameter.is_floating_point() and not parameter.any():
            nn.init.ones_(parameter) if parameter.ndim < 2 else nn.init.xavier_normal_(parameter)


def _fit_for_a_seed(module: nn.Module) -> nn.Module:
    if isinstance(module, _BatchNorm):
        return ChannelNorm(channel_axis=1)
    if isinstance(module, _DropoutNd):
        return nn.Identity()
    if isinstance(getattr(module, "dropout", None), float):  # recurrent and attention layers keep a number
        setattr(module, "dropout", 0.0)  # noqa: B010
    if isinstance(getattr(module, "inplace", None), bool):
        setattr(module, "inplace", False)  # noqa: B010
    for name, child in list(module.named_children()):
        setattr(module, name, _fit_for_a_seed(child))
    return module
