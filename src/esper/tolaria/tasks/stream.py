"""MNIST-1D that keeps changing while a host lives on it: several changes, at unknown times, under a cap.

The changes that a plan may have, and what each does to the data:

shuffle<percent>  so many of the positions change places anew; alone it is all of them, 0 is their own order
labels            the classes change their names anew
classes<n>        only the first n classes, or as many as that again
samples<n>        only n training samples, drawn anew from the pool
noise<percent>    so many training labels are wrong; 0 ends it
corrupt<percent>  so many of the positions read 0, others than before; 0 ends it
return<n>         the state after the first n changes, 0 the first of all
alarm             for one epoch validation is measured badly, and nothing has changed

The suite draws plans in which data move between two regimes, and other changes are sprinkled in. In one regime growth
pays (positions shuffled, labels clean), in the other it harms (positions in order, labels noisy). What is right for a
host therefore changes while it lives, more than once, and no number that it is told shows which it is: the training
samples change too, but on their own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from esper.tolaria.data import Phase, SealedTest, Split, TaskData, mnist1d
from esper.tolaria.data.mnist1d import TRAIN_POOL
from esper.tolaria.tasks.plans import MOST_CHANGES, Change, Kinds, states, written
from esper.tolaria.tasks.series import MNIST1D, MNIST1D_PARAMETERS
from esper.tolaria.tasks.task import Parameter, ParameterError, ParameterSpec

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


EPOCHS = 100
PLAN = "shuffle@16/labels@30/alarm@40/return0@48/classes6@60/noise30@70"
CAP = 1.5
_ALARM_NOISE = 2.0
"""Deviation of the noise on validation during an alarm, over that of the data."""

STREAM_PARAMETERS: Mapping[str, ParameterSpec] = {
    **MNIST1D_PARAMETERS,
    "size": replace(MNIST1D_PARAMETERS["size"], doc="training samples before the first change"),
    "noise": replace(
        MNIST1D_PARAMETERS["noise"], doc="share of training labels that are wrong before the first change"
    ),
    "shuffled": replace(
        MNIST1D_PARAMETERS["shuffled"],
        doc="share of the 40 positions that have changed places before the first change",
    ),
    "permutation": replace(
        MNIST1D_PARAMETERS["permutation"],
        doc="seed of which positions go where, and of what changes draw anew",
    ),
    "classes": replace(
        MNIST1D_PARAMETERS["classes"], doc="only the first so many digits before the first change"
    ),
    "plan": ParameterSpec(
        kind="str",
        default=PLAN,
        doc="the changes as kind@epoch between slashes: shuffle<percent>, labels, classes<n>, samples<n>, "
        "noise<percent>, corrupt<percent>, return<n>, alarm",
    ),
    "cap": ParameterSpec(
        kind="float",
        default=CAP,
        low=0.0,
        high=10.0,
        doc="parameters that may be added, over those of the host",
    ),
}


def phases_of(parameters: Mapping[str, Parameter]) -> list[tuple[int, DataState]]:
    """(start epoch, state of the data) of every phase."""
    first = DataState(
        shuffled=float(parameters["shuffled"]),
        permutation=int(parameters["permutation"]),
        classes=int(parameters["classes"]),
        samples=int(parameters["size"]),
        noise=float(parameters["noise"]),
    )
    return states(first, CHANGES.parse(str(parameters["plan"])), changed, seed=int(parameters["permutation"]))


def check_stream(parameters: Mapping[str, Parameter]) -> None:
    phases_of(parameters)


def load_stream(parameters: Mapping[str, Parameter]) -> TaskData:
    """The head has 10 outputs throughout; each phase has a test split of its own. Equal states share their splits."""
    data = int(parameters["data"])
    pool = mnist1d.pool(data, mnist1d.CLASSES)
    known: dict[DataState, Phase] = {}
    phases = []
    for start, state in phases_of(parameters):
        if state not in known:
            calm = known.get(replace(state, alarm=0))
            known[state] = _phase(pool, state, data) if calm is None else _alarmed(calm, state.alarm)
        phases.append(replace(known[state], start_epoch=start))
    last = phases[-1].test
    assert last is not None
    return TaskData(tuple(phases), last, mnist1d.CLASSES)


def _phase(pool: mnist1d.Pool, state: DataState, data: int) -> Phase:
    order = mnist1d.reordering(state.shuffled, state.permutation)
    series = pool.series[:, None, order]  # (sample, 1, 40), a copy
    series[:, :, _some_positions(state.corrupted, state.corruption)] = 0.0
    names = _names(state.naming)
    known = pool.labels < state.classes
    train = _some_samples(state.samples, state.sampling)
    train = train[known[train]]
    validation, test = (
        np.flatnonzero(known[part]) + part.start
        for part in (
            slice(mnist1d.TRAIN_POOL, mnist1d.TRAIN_POOL + mnist1d.VALIDATION),
            slice(mnist1d.TRAIN_POOL + mnist1d.VALIDATION, len(known)),
        )
    )
    noisy = mnist1d.mislabel(pool.labels[train], state.noise, state.classes, data)
    return Phase(
        0,
        Split.from_arrays(series[train], names[noisy]),
        Split.from_arrays(series[validation], names[pool.labels[validation]]),
        SealedTest(Split.from_arrays(series[test], names[pool.labels[test]])),
    )


def _alarmed(calm: Phase, seed: int) -> Phase:
    """The same data, and noise on what validation is measured with."""
    inputs = calm.validation.inputs.numpy()
    noise = np.random.default_rng([seed, 2]).standard_normal(inputs.shape).astype(np.float32)
    disturbed = Split.from_arrays(inputs + _ALARM_NOISE * noise, calm.validation.targets.numpy())
    return replace(calm, validation=disturbed)


def _some_samples(count: int, seed: int) -> NDArray[np.int64]:
    """(count,) places in the training pool; the first ones, but for another seed than 0."""
    pool = np.arange(mnist1d.TRAIN_POOL)
    return pool[:count] if seed == 0 else np.random.default_rng([seed, 3]).permutation(pool)[:count]


def _some_positions(share: float, seed: int) -> NDArray[np.int64]:
    chosen = np.random.default_rng([seed, 1]).permutation(mnist1d.POSITIONS)
    return chosen[: round(share * mnist1d.POSITIONS)]


def _names(seed: int) -> NDArray[np.int64]:
    """(class,) the output that stands for each class. No class keeps its name, but for seed 0."""
    outputs = np.arange(mnist1d.CLASSES)
    if seed == 0:
        return outputs
    cycle = np.random.default_rng([seed, 0]).permutation(mnist1d.CLASSES)
    outputs[cycle] = np.roll(cycle, 1)
    return outputs


ROWS = (
    replace(
        MNIST1D,
        name="stream",
        summary="MNIST-1D that changes several times while a host lives on it, scored over its life under a cap",
        load=load_stream,
        parameters=STREAM_PARAMETERS,
        check=check_stream,
        changes=lambda parameters: str(parameters["plan"]),
        epochs=EPOCHS,
        counts="life",
    ),
)


# How plans are drawn


SPRINKLED_KINDS = ("shuffle", "labels", "classes", "samples", "return", "alarm")
"""What happens within a regime, of what suites train on; `corrupt` is held out."""
DRAWN_SWITCHES = range(2, 5)
"""How often the regime changes; 5 and 6 times are held out."""
SPRINKLED = range(1, 4)
"""How many changes there are beside."""
REGIME_EPOCHS = 12
"""Epochs of a regime, at least."""
_APART = 5
"""Epochs from a sprinkled change to any other, to the start and to the end, at least."""
_CAPS = (0.5, 1.0, CAP, 2.0)
_SAMPLES = (900, 3000)
"""The fewest and the most samples; any size between is as likely as half or twice it."""
_RETURNS = 0.3
"""How often a switch goes back to a state that was there, where it can."""


def streaming(
    base: Mapping[str, Parameter], switches: int, kinds: Sequence[str], rng: np.random.Generator
) -> dict[str, Parameter]:
    """A stream with so many switches, changes of these kinds beside them, and a cap.

    base  `permutation` and `data`
    """
    pays = bool(rng.integers(2))
    shuffle, noise = _regime(pays, rng)
    stream: dict[str, Parameter] = {
        **base,
        "size": _samples(rng),
        "noise": noise / 100,
        "shuffled": shuffle / 100,
        "classes": 10,
        "cap": float(rng.choice(_CAPS)),
    }
    switched = switch_epochs(switches, EPOCHS, rng)
    plan: list[Change] = []
    paying: list[bool | None] = [pays]  # after so many changes; None amid a switch
    for epoch in sorted([*switched, *_sprinkled_epochs(switched, rng)]):
        if epoch in switched:
            pays = not pays
            plan += _switch(epoch, pays, paying, rng)
            paying += [None] * (len(plan) - len(paying)) + [pays]
            stream["plan"] = written(plan)
            phases_of(stream)  # a switch changes something: an error here is one of the draws
            continue
        while True:
            change = _drawn(epoch, str(rng.choice(kinds)), paying, rng)
            try:
                phases_of(stream | {"plan": written([*plan, change])})
            except ParameterError:  # it would change nothing
                continue
            break
        plan.append(change)
        paying.append(pays)
        stream["plan"] = written(plan)
    return stream


def switch_epochs(count: int, epochs: int, rng: np.random.Generator) -> list[int]:
    """Uniform over all ways to cut a life of so many epochs into `count` and one regimes that last."""
    free = epochs - (count + 1) * REGIME_EPOCHS
    if free < 0:
        raise ValueError(
            f"count is {count}; {epochs} epochs have room for {epochs // REGIME_EPOCHS - 1} switches"
        )
    gaps = np.sort(rng.choice(free + count, size=count, replace=False)) - np.arange(count)
    return [REGIME_EPOCHS * place + int(gap) for place, gap in enumerate(gaps, start=1)]


def _sprinkled_epochs(taken: Sequence[int], rng: np.random.Generator) -> list[int]:
    chosen: list[int] = []
    for _ in range(int(rng.integers(SPRINKLED.start, SPRINKLED.stop))):
        others = [0, *taken, *chosen, EPOCHS]
        free = [epoch for epoch in range(EPOCHS) if all(abs(epoch - other) >= _APART for other in others)]
        if free:
            chosen.append(int(rng.choice(free)))
    return chosen


def _regime(pays: bool, rng: np.random.Generator) -> tuple[int, int]:
    """Percent of the positions that are shuffled, percent of the labels that are wrong."""
    if pays:
        return int(rng.integers(80, 101)), int(rng.integers(0, 9))
    return 0, int(rng.integers(25, 41))


def _samples(rng: np.random.Generator) -> int:
    return round(float(np.exp(rng.uniform(*np.log(_SAMPLES)))))


def _switch(epoch: int, pays: bool, paying: Sequence[bool | None], rng: np.random.Generator) -> list[Change]:
    """Into the other regime: a new state of it, or one that was there."""
    known = [number for number, paid in enumerate(paying) if paid is pays]
    if known and rng.random() < _RETURNS:
        return [Change(epoch, "return", int(rng.choice(known)))]
    amounts = zip(("shuffle", "noise"), _regime(pays, rng), strict=True)
    return [Change(epoch, kind, amount) for kind, amount in amounts]


def _drawn(epoch: int, kind: str, paying: Sequence[bool | None], rng: np.random.Generator) -> Change:
    """A change that leaves the regime as it is; it may be one that changes nothing."""
    now = paying[-1]
    amounts = {
        "shuffle": int(rng.integers(80, 101)) if now else 0,
        "classes": int(rng.integers(4, 11)),
        "samples": _samples(rng),
        "corrupt": 0 if rng.random() < 0.3 else int(rng.integers(20, 61)),
        "return": int(rng.choice([number for number, paid in enumerate(paying) if paid is now])),
    }
    return Change(epoch, kind, amounts.get(kind))
