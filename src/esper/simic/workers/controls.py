"""Control curves trained by the workers of a world, which have nothing else to do while one waits for them."""

from collections.abc import Generator, Sequence

import torch

from esper.simic.workers.messages import Plain
from esper.simic.workers.process_world import ProcessWorld
from esper.tolaria.controls import ControlRun, run_from_plain


class ControlsByWorkers:
    """A `ControlTrainer` of `ControlCurves`."""

    __slots__ = ("_world",)

    def __init__(self, world: ProcessWorld) -> None:
        self._world = world

    def __call__(
        self, wanted: Sequence[tuple[str, int]], epochs: int, device: torch.device
    ) -> Generator[ControlRun]:
        calls: list[list[Plain]] = [[case, seed, epochs, str(device)] for case, seed in wanted]
        for plain in self._world.call_all("esper.tolaria.controls:compute_plain", calls):
            yield run_from_plain(plain)
