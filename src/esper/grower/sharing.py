"""Whether what coalitions of seeds have in common may be computed once for all: what checks have said so far."""

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from esper.grower.losses import Rows
from esper.kasmina import GrowingModel
from esper.kasmina.feature_cache import Restless

EVERY = 23
"""Batches from one check to the next, over validations: a check costs a forward. A prime number, so that each batch
of a small loader has its turn."""
_SIZES = 2
"""Numbers of samples in a batch that are told apart: the last batch often has fewer."""
_ROUNDING = 1e-3
"""Share of the mean loss. Off the CPU the same kernels may add up the same numbers in another order each time."""


@dataclass(slots=True, weakref_slot=True)
class Sharing:
    """Of one model, from one validation to the next.

    In a check a coalition is computed in full too, and has to come out the same. All of them are checked when the
    seeds or their stages have changed, in the first batch and in the first one with another number of samples. Later
    one in turn is, now and then: what a newborn seed, which adds nothing yet, could not show.
    """

    restless: Restless = field(default_factory=Restless)
    refuted: bool = False
    """Whether a check failed: then each coalition has a pass of its own."""
    _seeds: object = None
    _sizes: set[int] = field(default_factory=set)
    _batches: int = 0
    """Since the last check."""
    _turn: int = 0

    def begin(self, model: GrowingModel, switched: Sequence[Sequence[str]]) -> None:
        """A validation begins.

        switched  for each coalition the slots whose seeds are switched in it
        """
        slots = model.slots.items()
        alive = [(name, weakref.ref(slot.seed), slot.stage) for name, slot in slots if slot.seed is not None]
        seeds = (alive, [list(names) for names in switched])
        if seeds != self._seeds:
            self._seeds = seeds
            self._sizes.clear()

    def due(self, samples: int, coalitions: int) -> list[int]:
        """Places of the coalitions to check in the next batch; not the first, which is computed in full anyway."""
        self._batches += 1
        if samples not in self._sizes and len(self._sizes) < _SIZES:
            self._sizes.add(samples)
            self._batches = 0
            return list(range(1, coalitions))
        if self._batches < EVERY:
            return []
        self._batches, self._turn = 0, self._turn + 1
        return [1 + self._turn % (coalitions - 1)]


def agree(shared: Rows, full: Rows) -> bool:
    """Whether the losses of a batch are the same: to the bit on the CPU, else but for rounding."""
    one, other = shared.totals, full.totals
    if one.shape != other.shape or not torch.equal(shared.counts, full.counts):
        return False
    most = 0.0
    if one.device.type != "cpu":
        sizes = other.nan_to_num(posinf=0.0, neginf=0.0).abs()
        most = _ROUNDING * float(sizes.sum()) / max(1, sizes.numel())
    return torch.allclose(one, other, rtol=0.0, atol=most, equal_nan=True)
