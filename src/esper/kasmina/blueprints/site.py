"""Where a seed will stand: everything a blueprint may know when it builds."""

from dataclasses import dataclass, field

from torch import nn

from esper.leyline import Layout


@dataclass(frozen=True, slots=True)
class Site:
    """One slot as seen in the example forward."""

    layout: Layout
    channels: int
    positions: tuple[int, ...] | None
    """(height, width), (length,) or (); None when it varied between calls of the submodule."""
    causal: bool = False
    """Outputs at a position must not depend on later positions."""
    module: nn.Module | None = field(default=None, repr=False, compare=False)
    """The host's submodule whose output is grown."""
    copyable: bool = False
    """The submodule can be copied and fed the same arguments a second time."""

    @property
    def channel_axis(self) -> int:
        return -1 if self.layout is Layout.TOKENS else 1
