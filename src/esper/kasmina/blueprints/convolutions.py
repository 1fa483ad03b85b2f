"""Blueprints that look at neighbouring positions."""

from torch import nn

from esper.kasmina.blueprints.parts import convolution, fraction, pointwise
from esper.kasmina.blueprints.registry import blueprint
from esper.kasmina.blueprints.site import Site
from esper.leyline import BlueprintKind, Layout

_GRIDS = (Layout.IMAGE, Layout.SERIES)


@blueprint(
    "depthwise",
    layouts=(*_GRIDS, Layout.TOKENS),
    kind=BlueprintKind.CONV,
    causal=(Layout.SERIES, Layout.TOKENS),
)
def depthwise(site: Site) -> nn.Module:
    width = site.channels
    return nn.Sequential(
        convolution(site, width, width, groups=width), nn.GELU(), pointwise(site, width, width)
    )


@blueprint("bottleneck", layouts=_GRIDS, kind=BlueprintKind.CONV, causal=(Layout.SERIES,))
def bottleneck(site: Site) -> nn.Module:
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
    width, narrow = site.channels, fraction(site.channels, 2)
    return nn.Sequential(convolution(site, width, narrow), nn.GELU(), pointwise(site, narrow, width))


@blueprint("conv_light", layouts=_GRIDS, kind=BlueprintKind.CONV, causal=(Layout.SERIES,))
def conv_light(site: Site) -> nn.Module:
    return nn.Sequential(convolution(site, site.channels, site.channels), nn.GELU())


@blueprint("conv_heavy", layouts=_GRIDS, kind=BlueprintKind.CONV, causal=(Layout.SERIES,))
def conv_heavy(site: Site) -> nn.Module:
    width = site.channels
    return nn.Sequential(convolution(site, width, width), nn.GELU(), convolution(site, width, width))
