"""A frozen base whose target keeps changing while it lives: one shift comes, goes, or makes way for another.

    adapt_stream:base=pictures_batch,plan=noise150@12/rename@35/none@50/return1@70,size=200

A change is a shift with its amount in hundredths, and the epoch from which it holds: the samples are the same ones,
after another shift. `none` are those that were learned, `return<n>` is the target after the first n changes.
BatchNorm layers take the statistics of the new inputs when a target begins, which costs no labels.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from esper.tolaria.data import Phase, TaskData
from esper.tolaria.data.shifts import SHIFTS
from esper.tolaria.data.targets import target_data
from esper.tolaria.tasks.adapt import ADAPT, ADAPT_PARAMETERS, check_adapt
from esper.tolaria.tasks.bases import BASES
from esper.tolaria.tasks.plans import MOST_CHANGES, Change, Kinds, states
from esper.tolaria.tasks.stream import STREAM_PARAMETERS
from esper.tolaria.tasks.task import Parameter, ParameterSpec

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
