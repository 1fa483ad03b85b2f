"""Following a schedule on a host."""

from dataclasses import replace

from esper.leyline import ActionSpec, LifecycleOp, Situation, Stage
from esper.tamiyo.rules.reading import refusal
from esper.tamiyo.rules.schedule import Clause, Schedule


class SchedulePolicy:
    """Does what a schedule says, one operation an epoch.

    strict  True: every clause is executed at its epoch, or a ValueError says why it cannot be.
            False: a clause that is not legal yet waits as long as waiting can help, and later clauses for its slot
            wait behind it; one that waiting cannot help (its seed is gone, its blueprint is not offered, there is
            no such slot) is skipped.
    """

    __slots__ = ("_pending", "schedule", "strict")

    def __init__(self, schedule: Schedule | str, *, strict: bool = False) -> None:
        self.schedule = Schedule.parse(schedule) if isinstance(schedule, str) else schedule
        self.strict = strict
        epochs = [clause.epoch for clause in self.schedule.clauses]
        crowded = sorted({epoch for epoch in epochs if epochs.count(epoch) > 1})
        if strict and crowded:
            raise ValueError(
                f"the schedule has several clauses at t={crowded[0]}; an epoch takes one operation"
            )
        self.reset()

    def reset(self) -> None:
        # Stable: of clauses that fall due together, the one written first comes first.
        self._pending = sorted(self.schedule.clauses, key=lambda clause: clause.epoch)

    def act(self, situation: Situation) -> ActionSpec:
        now = situation.signals.epoch
        held_up: set[str] = set()
        for clause in [clause for clause in self._pending if clause.epoch <= now]:
            action = _with_slot_name(clause, situation)
            if action.slot in held_up:
                continue
            reason = refusal(action, situation)
            if reason is not None and self.strict:
                raise ValueError(f"clause '{clause}' cannot be executed at epoch {now}: {reason}")
            if reason is not None and _waiting_helps(action, situation):
                held_up.add(str(action.slot))
                continue
            self._pending.remove(clause)
            if reason is None:
                return action
        return ActionSpec()


def _with_slot_name(clause: Clause, situation: Situation) -> ActionSpec:
    names, written = [slot.name for slot in situation.slots], str(clause.action.slot)
    if written not in names and written.isdecimal() and int(written) < len(names):
        return replace(clause.action, slot=names[int(written)])
    return clause.action


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
}
"""operation -> the stages from which a seed becomes ready for it by itself."""
