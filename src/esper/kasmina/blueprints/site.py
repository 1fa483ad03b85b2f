"""Where a seed will stand: everything a blueprint may know when it builds."""

from dataclasses import dataclass, field

from torch import nn

from esper.kasmina.outputs import PLAIN, OutputForm
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
    form: OutputForm = PLAIN
    """Where in the submodule's output the activation sits."""
    positional: int = 1
    """Positional arguments the submodule is called with."""
    keywords: tuple[str, ...] = ()
    """Keyword arguments the submodule is called with."""

    @property
    def channel_axis(self) -> int:
        return channel_axis(self.layout)

    @property
    def guard_axes(self) -> tuple[int, ...]:
        """What is judged finite or not together: a sample; in a causal model a position of it."""
        if self.causal:
            return (self.channel_axis,)
        return {Layout.IMAGE: (1, 2, 3), Layout.FLAT: (1,)}.get(self.layout, (1, 2))


def channel_axis(layout: Layout) -> int:
    return -1 if layout is Layout.TOKENS else 1
