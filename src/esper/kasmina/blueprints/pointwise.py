"""Blueprints that work on each position alone."""

from torch import nn

from esper.kasmina.blueprints.parts import ChannelNorm, fraction, pointwise
from esper.kasmina.blueprints.registry import blueprint
from esper.kasmina.blueprints.site import Site
from esper.leyline import BlueprintKind, Layout

_ALL = tuple(Layout)
_VECTORS = (Layout.TOKENS, Layout.FLAT)
_RANK, _LARGE_RANK = 4, 16


@blueprint("norm", layouts=_ALL, kind=BlueprintKind.NORM, causal=True)
def norm(site: Site) -> nn.Module:
    return ChannelNorm(site.channel_axis)


@blueprint("lora", layouts=_ALL, kind=BlueprintKind.POINTWISE, causal=True)
def lora(site: Site) -> nn.Module:
    return _low_rank(site, _RANK)


@blueprint("lora_large", layouts=_ALL, kind=BlueprintKind.POINTWISE, causal=True)
def lora_large(site: Site) -> nn.Module:
    return _low_rank(site, _LARGE_RANK)


@blueprint("mlp_small", layouts=_VECTORS, kind=BlueprintKind.POINTWISE, causal=True)
def mlp_small(site: Site) -> nn.Module:
    return _mlp(site, fraction(site.channels, 2))


@blueprint("mlp", layouts=_VECTORS, kind=BlueprintKind.POINTWISE, causal=True)
def mlp(site: Site) -> nn.Module:
    return _mlp(site, 2 * site.channels)


def _low_rank(site: Site, rank: int) -> nn.Module:
    rank = min(rank, site.channels)
    return nn.Sequential(
        pointwise(site, site.channels, rank, bias=False), pointwise(site, rank, site.channels, bias=False)
    )


def _mlp(site: Site, hidden: int) -> nn.Module:
    layers = [pointwise(site, site.channels, hidden), nn.GELU(), pointwise(site, hidden, site.channels)]
    # A residual stream of tokens grows with depth; a flat activation's size is information.
    if site.layout is Layout.TOKENS:
        layers.insert(0, ChannelNorm(site.channel_axis))
    return nn.Sequential(*layers)
