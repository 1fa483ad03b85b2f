"""What happens to the data of a stream, and when, as text: `shuffle@16/classes5@30/alarm@41/return0@52`.

A change is a kind, the amount that some kinds need, and the epoch from which it holds, which several may share:

    shuffle<percent>  so many of the positions change places anew; alone it is all of them, 0 is their own order
    labels            the classes change their names anew
    classes<n>        only the first n classes, or as many as that again
    samples<n>        only n training samples, drawn anew from the pool
    noise<percent>    so many training labels are wrong; 0 ends it
    corrupt<percent>  so many of the positions read 0, others than before; 0 ends it
    return<n>         the state after the first n changes, 0 the first of all
    alarm             for one epoch validation is measured badly, and nothing has changed
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from esper.tolaria.data.mnist1d import TRAIN_POOL
from esper.tolaria.tasks.parameters import ParameterError, shown

MOST_CHANGES = 24
_AMOUNTS = {
    "shuffle": (0, 100),
    "classes": (2, 10),
    "samples": (200, TRAIN_POOL),
    "noise": (0, 40),
    "corrupt": (0, 90),
    "return": (0, MOST_CHANGES),
}
"""kind -> the least and the largest amount."""
CHANGE_KINDS = (*_AMOUNTS, "labels", "alarm")
_CHANGE = re.compile(r"([a-z]+)(\d{0,6})@(\d{1,6})")


@dataclass(frozen=True, slots=True)
class Change:
    """One change: what, how much of it, and the first epoch that is trained on the new data."""

    epoch: int
    kind: str
    amount: int = 0
    """Percent, classes, samples, or the number of changes before the state that returns; 0 where there is none."""

    def __str__(self) -> str:
        amount = f"{self.amount}" if self.kind in _AMOUNTS else ""
        return f"{self.kind}{amount}@{self.epoch}"


@dataclass(frozen=True, slots=True)
class DataState:
    """What the data are like. Two equal states are the same data, sample for sample."""

    shuffled: float
    """Share of the positions that have changed places."""
    permutation: int
    """Rng seed of which positions went where."""
    classes: int
    samples: int
    """Training samples of the pool, of all ten classes."""
    noise: float
    """Share of the training labels that are wrong."""
    sampling: int = 0
    """Rng seed of which samples these are; 0 is the first ones."""
    naming: int = 0
    """Rng seed of the names of the classes; 0 is their own names."""
    corrupted: float = 0.0
    """Share of the positions that read 0."""
    corruption: int = 0
    """Rng seed of which positions these are."""
    alarm: int = 0
    """Rng seed of what disturbs the measuring of validation; 0 is nothing."""


def parse_plan(text: str) -> tuple[Change, ...]:
    """The changes of a plan in the order of time; an error names the change and what is wrong with it."""
    changes = tuple(_parse_change(part, text) for part in text.split("/"))
    if len(changes) > MOST_CHANGES:
        raise ParameterError(f"plan has {len(changes)} changes; expected 1 to {MOST_CHANGES}")
    epochs = [change.epoch for change in changes]
    if epochs != sorted(epochs) or epochs[0] < 1:
        raise ParameterError(
            f"plan {shown(text)} has its changes at epochs {', '.join(map(str, epochs))}; expected 1 or later, and "
            "none earlier than the one before"
        )
    for change in changes:
        if change.kind == "alarm" and epochs.count(change.epoch) > 1:
            raise ParameterError(
                f"{change} in plan {shown(text)} shares its epoch with another change; an alarm is a drop without "
                "one"
            )
    return changes


def _parse_change(part: str, text: str) -> Change:
    match = _CHANGE.fullmatch(part)
    if match is None or match[1] not in CHANGE_KINDS:
        raise ParameterError(
            f"{shown(part)} in plan {shown(text)} is no change; write kind@epoch, such as shuffle@16 or "
            f"noise30@40, with a kind of {', '.join(CHANGE_KINDS)}"
        )
    kind, written, epoch = match[1], match[2], int(match[3])
    if kind not in _AMOUNTS:
        if written:
            raise ParameterError(f"{shown(part)} in plan {shown(text)} has an amount, and {kind} takes none")
        return Change(epoch, kind)
    low, high = _AMOUNTS[kind]
    amount = int(written) if written else high if kind == "shuffle" else None
    if amount is None or not low <= amount <= high:
        raise ParameterError(
            f"{shown(part)} in plan {shown(text)} needs an amount from {low} to {high}, as in {kind}{high}@{epoch}"
        )
    return Change(epoch, kind, amount)


def states(first: DataState, changes: Sequence[Change], *, seed: int) -> list[tuple[int, DataState]]:
    """(start epoch, state) of every phase, the first at epoch 0; an alarm is a phase of one epoch.

    Changes of one epoch make one phase, and are counted one by one all the same.

    seed  of what changes draw anew: places, names, samples, corrupted positions
    """
    phases, lasting = [(0, first)], [first]
    for number, change in enumerate(changes, start=1):
        now, own = lasting[-1], seed * (MOST_CHANGES + 1) + number
        after = _changed(now, change, lasting, own)
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


def _changed(now: DataState, change: Change, lasting: Sequence[DataState], own: int) -> DataState:
    share = change.amount / 100
    if change.kind == "shuffle":
        return replace(now, shuffled=share, permutation=own if share else now.permutation)
    if change.kind == "classes":
        return replace(now, classes=change.amount)
    if change.kind == "samples":
        return replace(now, samples=change.amount, sampling=own)
    if change.kind == "noise":
        return replace(now, noise=share)
    if change.kind == "corrupt":
        return replace(now, corrupted=share, corruption=own if share else 0)
    if change.kind == "labels":
        return replace(now, naming=own)
    if change.kind == "alarm":
        return replace(now, alarm=own)
    if change.amount >= len(lasting):
        raise ParameterError(
            f"{change} in the plan returns to the state after {change.amount} changes; there were "
            f"{len(lasting) - 1} before it"
        )
    return lasting[change.amount]
