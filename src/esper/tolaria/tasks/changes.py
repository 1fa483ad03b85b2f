"""The changes that a stream of MNIST-1D knows, and what each does to the data:

shuffle<percent>  so many of the positions change places anew; alone it is all of them, 0 is their own order
labels            the classes change their names anew
classes<n>        only the first n classes, or as many as that again
samples<n>        only n training samples, drawn anew from the pool
noise<percent>    so many training labels are wrong; 0 ends it
corrupt<percent>  so many of the positions read 0, others than before; 0 ends it
return<n>         the state after the first n changes, 0 the first of all
alarm             for one epoch validation is measured badly, and nothing has changed
"""

from dataclasses import dataclass, replace

from esper.tolaria.data.mnist1d import TRAIN_POOL
from esper.tolaria.tasks.plans import MOST_CHANGES, Change, Kinds

CHANGES = Kinds(
    amounts={
        "shuffle": (0, 100),
        "classes": (2, 10),
        "samples": (200, TRAIN_POOL),
        "noise": (0, 40),
        "corrupt": (0, 90),
        "return": (0, MOST_CHANGES),
    },
    plain=("labels", "alarm"),
)


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


def changed(now: DataState, change: Change, own: int) -> DataState:
    """The state after a change.

    own  rng seed of what it draws anew: places, names, samples, corrupted positions
    """
    if change.kind == "labels":
        return replace(now, naming=own)
    if change.kind == "alarm":
        return replace(now, alarm=own)
    assert change.amount is not None  # the others have one
    share = change.amount / 100
    if change.kind == "shuffle":
        return replace(now, shuffled=share, permutation=own if share else now.permutation)
    if change.kind == "classes":
        return replace(now, classes=change.amount)
    if change.kind == "samples":
        return replace(now, samples=change.amount, sampling=own)
    if change.kind == "noise":
        return replace(now, noise=share)
    return replace(now, corrupted=share, corruption=own if share else 0)
