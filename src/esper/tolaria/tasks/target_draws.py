"""What the suite `adapt_stream` draws: a base, and targets that take turns on it.

Each change is to a shift of another group than the one before (inputs, geometry, labels, domain, or nothing), or the
return of a target that was there. So what is right for a host changes with every target: what to grow, and where.
"""

from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np

from esper.tolaria.data.shifts import SHIFTS
from esper.tolaria.tasks.adapt_draws import HELD_OUT_SHIFTS, Parameters, draw_amount, possible_shifts
from esper.tolaria.tasks.adapt_stream import EPOCHS, TARGETS, targets_of
from esper.tolaria.tasks.bases import BASES, Base
from esper.tolaria.tasks.instance import Instance
from esper.tolaria.tasks.plans import Change, written
from esper.tolaria.tasks.streaming import switch_epochs
from esper.tolaria.tasks.task import Parameter, task

CHANGES = range(3, 9)
"""How often the target changes."""
_LABELS = (100, 300)
"""The fewest and the most labels of a target; any size between is as likely as half or twice it."""
_NOISES = (0.1, 0.4)
"""Shares of them that are wrong: where all labels are right, training everything is best on every target."""
_CAPS = (0.4, 0.7, 1.0)
"""Parameters that may be added, over those that LoRA of rank 4 at every layer adds."""
_RETURNS = 0.25
"""How often a change goes back to a target that was there, where it can."""


def draw_targets(rng: np.random.Generator, shifts: Sequence[str]) -> Parameters:
    """A base whose target changes among these shifts, without the seed of the samples."""
    base = BASES[str(rng.choice(tuple(BASES)))]
    parameters: Parameters = {
        "base": base.name,
        "size": round(float(np.exp(rng.uniform(*np.log(_LABELS))))),
        "noise": round(float(rng.uniform(*_NOISES)), 2),
        "cap": round(float(rng.choice(_CAPS)) * lora_share(base), 3),
    }
    first, *others = _walk(base, tuple(shifts), int(rng.integers(CHANGES.start, CHANGES.stop)), rng)
    parameters["shift"] = first.kind
    if first.amount is not None:
        parameters["amount"] = first.amount / 100
    return parameters | {"plan": written(others)}


def _walk(base: Base, shifts: tuple[str, ...], count: int, rng: np.random.Generator) -> list[Change]:
    """The target at the start, and so many changes."""
    plan: list[Change] = []
    lived: list[Change] = []  # the target after each change
    for epoch in [0, *switch_epochs(count, EPOCHS, rng)]:
        now = SHIFTS[lived[-1].kind].group if lived else None
        known = [number for number, target in enumerate(lived) if SHIFTS[target.kind].group != now]
        if known and rng.random() < _RETURNS:
            number = int(rng.choice(known))
            plan.append(Change(epoch, "return", number))
            lived.append(lived[number])
            continue
        possible = [shift for shift in possible_shifts(base, shifts) if SHIFTS[shift].group != now]
        group = str(rng.choice(list(dict.fromkeys(SHIFTS[shift].group for shift in possible))))
        shift = str(rng.choice([shift for shift in possible if SHIFTS[shift].group == group]))
        amount = round(100 * draw_amount(base, shift, rng)) if shift in TARGETS.amounts else None
        plan.append(Change(epoch, shift, amount))
        lived.append(plan[-1])
    return plan


@cache
def lora_share(base: Base) -> float:
    """What LoRA of rank 4 at every layer adds to a base, over its parameters."""
    hosts = []
    for trains in ("head", "lora4"):
        instance = Instance.of("adapt", {"base": base.name, "size": 100, "trains": trains})
        hosts.append(instance.row.host(instance.load()))
    own, both = (sum(each.numel() for each in host.parameters()) for host in hosts)
    return both / own - 1.0


def meets_other_shift(parameters: Mapping[str, Parameter]) -> bool:
    """Whether some target has a shift that is never trained on."""
    row = task("adapt_stream")
    return any(target.shift in HELD_OUT_SHIFTS for _, target in targets_of(row.complete(parameters)))


def covering() -> tuple[Instance, ...]:
    """An instance of every base: between them they have every slot and every blueprint."""
    return tuple(Instance.of("adapt_stream", {"base": name, "size": 100}) for name in BASES)
