"""Open-loop schedules in a line of text.

    germinate mixer@1 t=0; advance 1 t=2; fossilize 1 t=9

A clause is an operation, a slot (by name; by position from 0; or as first, middle or last of however many there are;
a name comes first), options, and the epoch it falls due. `germinate` puts the blueprint before the slot, or several,
of which the first that is offered there is taken. Options are the operation's other heads:

    germinate norm@blocks.0 style=gate tempo=5 alpha_target=0.7 t=3; prune 0 alpha_speed=3 t=12
    germinate mixer|attention|mlp@last t=2; advance last t=3
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from esper.leyline import CAUSAL_TABLE, CHOICES, ActionSpec, DecisionSettings, LifecycleOp, Situation, Stage
from esper.tamiyo.rules.policy import Remembering, refusal

_OPERATIONS = {op.name.lower(): op for op in LifecycleOp if op is not LifecycleOp.WAIT}
_PLACED = ("op", "slot", "blueprint")
"""Heads that a clause gives by position, not as an option."""
_OR = "|"
"""Between blueprints of which one is taken."""


@dataclass(frozen=True, slots=True)
class Clause:
    """What to do, and the epoch it falls due. The action's slot is a name or a position, as written."""

    epoch: int
    action: ActionSpec

    def __str__(self) -> str:
        action, default = self.action, ActionSpec()
        place = action.slot if action.blueprint is None else f"{action.blueprint}@{action.slot}"
        options = [
            f"{head}={getattr(action, head)}"
            for head in CAUSAL_TABLE[action.op]
            if head not in _PLACED and getattr(action, head) != getattr(default, head)
        ]
        return " ".join([action.op.name.lower(), str(place), *options, f"t={self.epoch}"])


@dataclass(frozen=True, slots=True)
class Schedule:
    """Clauses in the order they were written; `Schedule.parse(str(schedule)) == schedule`."""

    clauses: tuple[Clause, ...]

    @staticmethod
    def parse(text: str) -> "Schedule":
        """Read a line of text; a ValueError names the clause, where it is and what is wrong with it."""
        clauses, position = [], 0
        for number, part in enumerate(text.split(";"), start=1):
            stripped = part.strip()
            if stripped:
                begins = position + part.index(stripped)
                try:
                    clauses.append(_parse_clause(stripped))
                except ValueError as error:
                    raise ValueError(
                        f"clause {number} of the schedule, at character {begins}, {stripped!r}: {error}"
                    ) from None
            position += len(part) + 1
        return Schedule(tuple(clauses))

    def __str__(self) -> str:
        return "; ".join(map(str, self.clauses))


def _parse_clause(text: str) -> Clause:
    verb, *words = text.split()
    if verb not in _OPERATIONS:
        raise ValueError(f"{verb!r} is no operation; expected one of {', '.join(_OPERATIONS)}")
    op = _OPERATIONS[verb]
    options = {name: value for name, _, value in (word.partition("=") for word in words if "=" in word)}
    places = [word for word in words if "=" not in word]
    form = "blueprint@slot" if op is LifecycleOp.GERMINATE else "slot"
    if len(places) != 1:
        raise ValueError(f"{verb} has {' '.join(places) or 'nothing'!r} for a place; expected one {form}")
    due = options.pop("t", None)
    if due is None or not due.isdecimal():
        raise ValueError(f"t is {due!r}; expected t= and the epoch, a whole number")
    action = replace(_place(op, places[0], form), **_values(op, options))  # type: ignore[arg-type] # by CHOICES
    return Clause(int(due), action)


def _place(op: LifecycleOp, place: str, form: str) -> ActionSpec:
    if op is not LifecycleOp.GERMINATE:
        if "@" in place:
            raise ValueError(f"the place is {place!r}; expected a {form} alone")
        return ActionSpec(op, place)
    blueprint, _, slot = place.partition("@")
    if not blueprint or not slot:
        raise ValueError(f"the place is {place!r}; expected {form}, such as mixer@1")
    return ActionSpec(op, slot, blueprint)


def _values(op: LifecycleOp, options: Mapping[str, str]) -> dict[str, object]:
    allowed = [head for head in CAUSAL_TABLE[op] if head not in _PLACED]
    values: dict[str, object] = {}
    for name, text in options.items():
        if name not in allowed:
            raise ValueError(f"{name!r} is no option here; expected {', '.join([*allowed, 't'])}")
        choices = {str(choice): choice for choice in CHOICES[name]}
        if text not in choices:
            raise ValueError(f"{name} is {text!r}; expected one of {', '.join(choices)}")
        values[name] = choices[text]
    return values


@dataclass
class _Pending:
    """What a schedule still has to do."""

    clauses: list[Clause] = field(default_factory=list)


class SchedulePolicy(Remembering[_Pending]):
    """Does what a schedule says, one operation an epoch.

    strict  True: every clause is executed at its epoch, or a ValueError says why it cannot be.
            False: a clause that is not legal yet waits as long as waiting can help, and later clauses for its slot
            wait behind it; one that waiting cannot help (its seed is gone, its blueprint is not offered, there is
            no such slot) is skipped.
    """

    def __init__(self, schedule: Schedule | str, *, strict: bool = False) -> None:
        self.schedule = Schedule.parse(schedule) if isinstance(schedule, str) else schedule
        self.strict = strict
        epochs = [clause.epoch for clause in self.schedule.clauses]
        crowded = sorted({epoch for epoch in epochs if epochs.count(epoch) > 1})
        if strict and crowded:
            raise ValueError(
                f"the schedule has several clauses at t={crowded[0]}; an epoch takes one operation"
            )
        super().__init__(_Pending)

    @property
    def decisions(self) -> DecisionSettings:
        """RETIRE is a choice where a clause says it."""
        return DecisionSettings(
            retire=any(clause.action.op is LifecycleOp.RETIRE for clause in self.schedule.clauses)
        )

    def reset(self) -> None:
        """Begin the schedule anew."""
        # Stable: of clauses that fall due together, the one written first comes first.
        self.memory = _Pending(sorted(self.schedule.clauses, key=lambda clause: clause.epoch))

    def act(self, situation: Situation) -> ActionSpec:
        """Do the first clause that is due and legal."""
        now = situation.signals.epoch
        held_up: set[str] = set()
        for clause in [clause for clause in self.memory.clauses if clause.epoch <= now]:
            action = resolved(clause, situation)
            if action.slot in held_up:
                continue
            reason = refusal(action, situation)
            if reason is not None and self.strict:
                raise ValueError(f"clause '{clause}' cannot be executed at epoch {now}: {reason}")
            if reason is not None and _waiting_helps(action, situation):
                held_up.add(str(action.slot))
                continue
            self.memory.clauses.remove(clause)
            if reason is None:
                return action
        return ActionSpec()


def resolved(clause: Clause, situation: Situation) -> ActionSpec:
    """The action with the host's own name of the slot, and with one blueprint."""
    names, written = [slot.name for slot in situation.slots], str(clause.action.slot)
    places = {"first": 0, "middle": (len(names) - 1) // 2, "last": len(names) - 1}
    place = int(written) if written.isdecimal() else places.get(written, len(names))
    slot = names[place] if written not in names and place < len(names) else written
    choices = (clause.action.blueprint or "").split(_OR)
    if len(choices) == 1:
        return replace(clause.action, slot=slot)
    offered = {card.name for card in situation.cards.get(slot, ())}
    return replace(
        clause.action, slot=slot, blueprint=next((name for name in choices if name in offered), choices[0])
    )


def _waiting_helps(action: ActionSpec, situation: Situation) -> bool:
    """Whether an action that is illegal now may become legal without another operation at its slot."""
    slot = next((slot for slot in situation.slots if slot.name == action.slot), None)
    if slot is None or action.op in situation.legal[slot.name].operations:
        return False  # no such slot, or a choice that is not offered
    if action.op is LifecycleOp.GERMINATE:
        offered = any(card.name == action.blueprint for card in situation.cards[slot.name])
        return offered and (slot.fading or slot.stage in (Stage.DORMANT, Stage.EMBARGOED))
    return not slot.fading and slot.stage in _COMING[action.op]


_COMING = {
    LifecycleOp.ADVANCE: (Stage.TRAINING,),
    LifecycleOp.PRUNE: (Stage.TRAINING, Stage.BLENDING, Stage.HOLDING),
    LifecycleOp.FOSSILIZE: (Stage.BLENDING, Stage.HOLDING),
    LifecycleOp.SET_ALPHA_TARGET: (Stage.BLENDING, Stage.HOLDING),
    LifecycleOp.RETIRE: (Stage.FOSSILIZED,),
}
"""operation -> the stages from which a seed becomes ready for it by itself."""
