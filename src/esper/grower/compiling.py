"""Whether a change of the model makes torch.compile work again."""

import sys

import torch

from esper.kasmina import GrowingModel


class CompileWatch:
    """Remembers what had been compiled before the model was grown: that is not its affair."""

    def __init__(self, model: GrowingModel) -> None:
        self._model, self._graphs_before = model, _compiled_graphs()

    def topology(self) -> tuple[object, ...]:
        """What a graph depends on; alpha does not belong to it."""
        slots = self._model.slots.values()
        return tuple((slot.life.births, slot.stage, slot.life.fading) for slot in slots)

    def recompiles(self, before: tuple[object, ...]) -> bool:
        """Whether the next forward compiles anew, the topology having been `before`."""
        return before != self.topology() and _compiled_graphs() > self._graphs_before


def _compiled_graphs() -> int:
    """How many graphs torch.compile has made in this process."""
    if "torch._dynamo" not in sys.modules:  # a second's import, and without it nothing has been compiled
        return 0
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])
