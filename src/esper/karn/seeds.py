"""The lives of seeds, put together from what a run recorded.

A life is told twice in a run of ours: by the controller's decisions and by the host's own events. A user's loop has
only the latter, a world without training only the former; either is enough, and both together make one life.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from esper.leyline import (
    DecisionTaken,
    EpisodeFinished,
    LifecycleOp,
    Place,
    SeedFading,
    SeedGerminated,
    Stage,
    StageChanged,
)
from esper.nissa import Record

TELLING_OF_SEEDS = tuple(
    event.kind for event in (SeedGerminated, StageChanged, SeedFading, DecisionTaken, EpisodeFinished)
)
"""Kinds of event that a life is put together from."""


@dataclass(slots=True)
class SeedLife:
    """One seed. Epochs are the episode's; what was not recorded, or did not happen, is None."""

    round: int | None
    env: int | None
    episode: int | None
    slot: str
    blueprint: str | None = None
    style: str | None = None
    parameters: int | None = None
    """That it and its gate added; known from the host's events only."""
    born: int | None = None
    advanced: int | None = None
    """When it began to blend in."""
    fossilized: int | None = None
    pruned: int | None = None
    """When PRUNE was decided, or the host removed it."""
    contribution: float | None = None
    """The last that was known when deciding about it: validation accuracy with the seed minus without."""
    fate: str = "alive"
    """fossilized, pruned, or alive: as it was when the episode (or the record) ended."""


class _Lives:
    """The latest life at every slot of every episode, and all of them in the order of birth."""

    __slots__ = ("latest", "lives")

    def __init__(self) -> None:
        self.lives: list[SeedLife] = []
        self.latest: dict[tuple[int | None, int | None, str], SeedLife] = {}

    def born(self, place: Place, slot: str) -> SeedLife:
        """The life that begins here; the second account of a birth finds what the first one made."""
        key = (place.env, place.episode, slot)
        life = self.latest.get(key)
        if life is None or life.fate == "pruned":
            life = SeedLife(place.round, place.env, place.episode, slot, born=place.epoch)
            self.latest[key] = life
            self.lives.append(life)
        return life

    def at(self, place: Place, slot: str) -> SeedLife | None:
        return self.latest.get((place.env, place.episode, slot))


def seed_lives(records: Iterable[Record]) -> list[SeedLife]:
    """Every seed of a run, in the order of birth."""
    lives = _Lives()
    for record in records:
        event, place = record.event, record.place
        if isinstance(event, SeedGerminated):
            life = lives.born(place, event.slot)
            life.blueprint, life.style, life.parameters = event.blueprint, event.style.value, event.parameters
        elif isinstance(event, StageChanged):
            _live_on(lives.at(place, event.slot), event, place.epoch)
        elif isinstance(event, SeedFading):
            _end(lives.at(place, event.slot), "pruned", place.epoch)
        elif isinstance(event, DecisionTaken) and event.slot is not None:
            _decide(lives, event, event.slot, place)
        elif isinstance(event, EpisodeFinished):
            _forget(lives, place)
    return lives.lives


def _decide(lives: _Lives, event: DecisionTaken, slot: str, place: Place) -> None:
    if event.op is LifecycleOp.GERMINATE:
        life = lives.born(place, slot)
        life.blueprint = event.blueprint if life.blueprint is None else life.blueprint
        life.style = event.style if life.style is None else life.style
        return
    current = lives.at(place, slot)
    if current is None:
        return
    if event.contribution is not None:
        current.contribution = event.contribution
    if event.op is LifecycleOp.ADVANCE:
        current.advanced = event.epoch if current.advanced is None else current.advanced
    elif event.op is LifecycleOp.FOSSILIZE:
        _end(current, "fossilized", event.epoch)
    elif event.op is LifecycleOp.PRUNE:
        _end(current, "pruned", event.epoch)


def _live_on(life: SeedLife | None, event: StageChanged, epoch: int | None) -> None:
    if life is None:
        return
    if event.before is Stage.TRAINING and event.after is Stage.BLENDING:
        life.advanced = epoch if life.advanced is None else life.advanced
    elif event.after is Stage.FOSSILIZED:
        _end(life, "fossilized", epoch)
    elif event.before.is_live and event.after in (Stage.EMBARGOED, Stage.DORMANT):
        _end(life, "pruned", epoch)


def _end(life: SeedLife | None, fate: str, epoch: int | None) -> None:
    """The first word of an end counts: a seed that fades was pruned when it was decided."""
    if life is None or life.fate != "alive":
        return
    life.fate = fate
    if fate == "pruned":
        life.pruned = epoch
    else:
        life.fossilized = epoch


def _forget(lives: _Lives, place: Place) -> None:
    """An episode that ended is over: its slots will not be heard of again."""
    ended = [key for key in lives.latest if key[:2] == (place.env, place.episode)]
    for key in ended:
        del lives.latest[key]
