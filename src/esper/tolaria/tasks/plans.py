"""Plans: what happens to data and when, as text, such as `shuffle@16/classes5@30/alarm@41/return0@52`.

A change is a kind, the amount that some kinds need, and the epoch from which it holds, which several may share. What
the kinds are is for each task to say; two of them mean the same everywhere:

    return<n>  the state after the first n changes, 0 the first of all
    alarm      a state of one epoch, after which the one before it is back
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from esper.tolaria.tasks.task import ParameterError, shown

MOST_CHANGES = 24
_CHANGE = re.compile(r"([a-z]+)(\d{0,6})@(\d{1,6})")

State = TypeVar("State")
"""What the data are like. Two equal states are the same data, sample for sample."""


@dataclass(frozen=True, slots=True)
class Change:
    """One change: what, how much of it, and the first epoch that is trained on the new data."""

    epoch: int
    kind: str
    amount: int | None = None
    """In the unit of its kind, of a return the number of changes before its state; None where a kind has none."""

    def __str__(self) -> str:
        return f"{self.kind}{'' if self.amount is None else self.amount}@{self.epoch}"


@dataclass(frozen=True, slots=True)
class Kinds:
    """The kinds of changes that a task knows."""

    amounts: Mapping[str, tuple[int, int]]
    """kind -> the least and the largest amount"""
    plain: tuple[str, ...]
    """Kinds without an amount."""

    @property
    def names(self) -> tuple[str, ...]:
        """All of them."""
        return *self.amounts, *self.plain

    def parse(self, text: str) -> tuple[Change, ...]:
        """The changes of a plan in the order of time; an error names the change and what is wrong with it."""
        changes = tuple(self._parse_change(part, text) for part in text.split("/"))
        if len(changes) > MOST_CHANGES:
            raise ParameterError(f"plan has {len(changes)} changes; expected 1 to {MOST_CHANGES}")
        epochs = [change.epoch for change in changes]
        if epochs != sorted(epochs) or epochs[0] < 1:
            raise ParameterError(
                f"plan {shown(text)} has its changes at epochs {', '.join(map(str, epochs))}; expected 1 or later, "
                "and none earlier than the one before"
            )
        for change in changes:
            if change.kind == "alarm" and epochs.count(change.epoch) > 1:
                raise ParameterError(
                    f"{change} in plan {shown(text)} shares its epoch with another change; an alarm is a drop "
                    "without one"
                )
        return changes

    def _parse_change(self, part: str, text: str) -> Change:
        match = _CHANGE.fullmatch(part)
        if match is None or match[1] not in self.names:
            raise ParameterError(
                f"{shown(part)} in plan {shown(text)} is no change; write kind@epoch, such as shuffle@16 or "
                f"noise30@40, with a kind of {', '.join(self.names)}"
            )
        kind, written, epoch = match[1], match[2], int(match[3])
        if kind not in self.amounts:
            if written:
                raise ParameterError(
                    f"{shown(part)} in plan {shown(text)} has an amount, and {kind} takes none"
                )
            return Change(epoch, kind)
        low, high = self.amounts[kind]
        amount = int(written) if written else high if kind == "shuffle" else None
        if amount is None or not low <= amount <= high:
            raise ParameterError(
                f"{shown(part)} in plan {shown(text)} needs an amount from {low} to {high}, as in "
                f"{kind}{high}@{epoch}"
            )
        return Change(epoch, kind, amount)


def states(
    first: State, changes: Sequence[Change], changed: Callable[[State, Change, int], State], *, seed: int
) -> list[tuple[int, State]]:
    """(start epoch, state) of every phase, the first at epoch 0; an alarm is a phase of one epoch.

    Changes of one epoch make one phase, and are counted one by one all the same.

    changed  the state after a change (but a return), with the rng seed of what this one draws anew
    seed     of what all of them draw
    """
    phases, lasting = [(0, first)], [first]
    for number, change in enumerate(changes, start=1):
        now, own = lasting[-1], seed * (MOST_CHANGES + 1) + number
        after = _returned(change, lasting) if change.kind == "return" else changed(now, change, own)
        if after == now:
            raise ParameterError(f"{change} in the plan changes nothing: the data are like that already")
        if phases[-1][0] == change.epoch:
            phases.pop()
        if after == phases[-1][1]:
            raise ParameterError(f"the changes at epoch {change.epoch} of the plan undo one another")
        phases.append((change.epoch, after))
        if change.kind == "alarm":
            if number == len(changes) or changes[number].epoch > change.epoch + 1:
                phases.append((change.epoch + 1, now))
            after = now
        lasting.append(after)
    return phases


def _returned(change: Change, lasting: Sequence[State]) -> State:
    assert change.amount is not None  # a return has one
    if change.amount >= len(lasting):
        raise ParameterError(
            f"{change} in the plan returns to the state after {change.amount} changes; there were "
            f"{len(lasting) - 1} before it"
        )
    return lasting[change.amount]


def written(plan: Sequence[Change]) -> str:
    """As `Kinds.parse` reads it."""
    return "/".join(map(str, plan))
