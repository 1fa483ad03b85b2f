"""A frozen base whose target keeps changing while it lives: one shift comes, goes, or makes way for another.

    adapt_stream:base=pictures_batch,plan=noise150@12/rename@35/none@50/return1@70,size=200

A change is a shift with its amount in hundredths, and the epoch from which it holds: the samples are the same ones,
after another shift. `none` are those that were learned, `return<n>` is the target after the first n changes.
BatchNorm layers take the statistics of the new inputs when a target begins, which costs no labels.

The suite draws a base, and targets that take turns on it. Each change is to a shift of another group than the one
before (inputs, geometry, labels, domain, or nothing), or the return of a target that was there. So what is right for
a host changes with every target: what to grow, and where.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from esper.tolaria.data import Phase, TaskData
from esper.tolaria.data.targets import SHIFTS, target_data
from esper.tolaria.tasks.adapt import (
    ADAPT,
    ADAPT_PARAMETERS,
    BASES,
    HELD_OUT_SHIFTS,
    Base,
    check_adapt,
    draw_amount,
    possible_shifts,
)
from esper.tolaria.tasks.instance import Instance
from esper.tolaria.tasks.plans import MOST_CHANGES, Change, Kinds, states, written
from esper.tolaria.tasks.stream import STREAM_PARAMETERS, switch_epochs
from esper.tolaria.tasks.task import Parameter, Parameters, ParameterSpec, task

EPOCHS = 120
PLAN = "noise80@16/rename@40/return1@60/shuffle60@80/none@104"
_HUNDREDTHS = 100
_DRAWN_ANEW = ("shuffle", "rename", "merge", "domain")
"""Shifts that are another one each time: other places, names or signs."""

TARGETS = Kinds(
    amounts={
        **{
            shift: (1, round(_HUNDREDTHS * kind.most))
            for shift, kind in SHIFTS.items()
            if kind.most is not None
        },
        "return": (0, MOST_CHANGES),
    },
    plain=tuple(shift for shift, kind in SHIFTS.items() if kind.most is None),
)
"""The changes that a plan may have."""

ADAPT_STREAM_PARAMETERS: Mapping[str, ParameterSpec] = {
    **ADAPT_PARAMETERS,
    "shift": replace(
        ADAPT_PARAMETERS["shift"], default="none", doc="what happened to the samples before the first change"
    ),
    "size": replace(
        ADAPT_PARAMETERS["size"], default=200, doc="labelled samples of each target; of digits there are 500"
    ),
    "plan": ParameterSpec(
        kind="str",
        default=PLAN,
        doc="the changes as shift<hundredths>@epoch between slashes, and return<n>@epoch",
    ),
    "cap": replace(STREAM_PARAMETERS["cap"], default=0.25),
}


@dataclass(frozen=True, slots=True)
class Target:
    """What happened to the samples. Two equal targets are the same data, sample for sample."""

    shift: str
    amount: float = 1.0
    """As `adapt` has it."""
    drawn: int = 0
    """Rng seed of what the shift drew; 0 where it draws nothing anew."""

    @property
    def group(self) -> str:
        """What it changes: inputs, geometry, labels, domain, or nothing."""
        return SHIFTS[self.shift].group


def targets_of(parameters: Mapping[str, Parameter]) -> list[tuple[int, Target]]:
    """(start epoch, target) of every phase."""
    seed = int(parameters["data"])
    first = _target(str(parameters["shift"]), float(parameters["amount"]), seed * (MOST_CHANGES + 1))
    return states(first, TARGETS.parse(str(parameters["plan"])), _changed, seed=seed)


def _changed(_: Target, change: Change, own: int) -> Target:
    return _target(change.kind, 1.0 if change.amount is None else change.amount / _HUNDREDTHS, own)


def _target(shift: str, amount: float, own: int) -> Target:
    return Target(shift, amount, own if shift in _DRAWN_ANEW else 0)


def check_adapt_stream(parameters: Mapping[str, Parameter]) -> None:
    """Raise ParameterError unless every target would be one of `adapt`."""
    check_adapt(parameters)
    for _, target in targets_of(parameters):
        check_adapt({**parameters, "shift": target.shift, "amount": target.amount})


def load_adapt_stream(parameters: Mapping[str, Parameter]) -> TaskData:
    """Each phase has a test split of its own. Equal targets share their splits."""
    data, known = int(parameters["data"]), dict[Target, Phase]()
    phases = []
    for start, target in targets_of(parameters):
        if target not in known:
            loaded = target_data(
                BASES[str(parameters["base"])].family,
                shift=target.shift,
                amount=target.amount,
                size=int(parameters["size"]),
                noise=float(parameters["noise"]),
                data=data,
                drawn=target.drawn or data,
            )
            known[target] = replace(loaded.phases[0], test=loaded.test)
        phases.append(replace(known[target], start_epoch=start))
    last = phases[-1].test
    assert last is not None
    return TaskData(tuple(phases), last, loaded.classes)


ROWS = (
    replace(
        ADAPT,
        name="adapt_stream",
        summary="a frozen network whose target changes several times while it lives, scored over its life",
        load=load_adapt_stream,
        parameters=ADAPT_STREAM_PARAMETERS,
        check=check_adapt_stream,
        changes=lambda parameters: str(parameters["plan"]),
        epochs=EPOCHS,
        counts="life",
    ),
)


# What the suite draws


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
