"""Blueprints that move information between any two positions of a fixed grid."""

from torch import Tensor, nn

from esper.kasmina.blueprints.registry import blueprint
from esper.kasmina.blueprints.site import Site
from esper.leyline import BlueprintKind, Layout


class Mixer(nn.Module):
    """A learned map over the positions, shared by all channels; over an image first rows, then columns."""

    def __init__(self, positions: tuple[int, ...]) -> None:
        super().__init__()
        self.positions = positions
        self.along = nn.ModuleList(nn.Linear(length, length) for length in positions)
        self.activation = nn.GELU()

    def forward(self, h: Tensor) -> Tensor:
        if tuple(h.shape[2:]) != self.positions:
            raise ValueError(
                f"a mixer seed was born for positions {self.positions} and met {tuple(h.shape[2:])}: it needs a "
                "fixed length. Pad the input, or keep mixers out with wrap(..., blueprints=[...])"
            )
        for axis, layer in enumerate(self.along, start=2):
            h = layer(h.transpose(axis, -1)).transpose(axis, -1)
        mixed: Tensor = self.activation(h)
        return mixed


@blueprint(
    "mixer",
    layouts=(Layout.IMAGE, Layout.SERIES),
    kind=BlueprintKind.MIXER,
    fits=lambda site: site.positions is not None,
)
def mixer(site: Site) -> nn.Module:
    assert site.positions is not None
    return Mixer(site.positions)
