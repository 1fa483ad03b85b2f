"""The lives of seeds, put together from what a run recorded.

A training run records a seed's life twice: in the controller's decisions and in the host's own events. A user's loop
has only the latter, a world without training only the former; either is enough, and both together make one life.
The rules are methods of `SeedLife`: SQL applies them to typed events, the live page to a few fields of each decision.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from esper.leyline import (
    DecisionTaken,
    EpisodeFinished,
    LifecycleOp,
    SeedFading,
    SeedGerminated,
    Stage,
    StageChanged,
)
from esper.nissa import Record

SEED_KINDS = tuple(
    event.kind for event in (SeedGerminated, StageChanged, SeedFading, DecisionTaken, EpisodeFinished)
)
"""Kinds of event that a life is put together from."""


@dataclass(slots=True)
class SeedLife:
    """One seed. Epochs are the episode's; what was not recorded, or did not happen, is None."""

    round: int | None
    """Round in which it germinated."""
    env: int | None
    """Index of the environment."""
    episode: int | None
    """Number of the episode in its env, from 0."""
    slot: str
    """Slot it grew in."""
    blueprint: str | None = None
    """Blueprint it was built from."""
    style: str | None = None
    """How its output was combined with the host's."""
    parameters: int | None = None
    """Parameters that it and its gate added; known from the host's events only."""
    born: int | None = None
    """Epoch in which it germinated."""
    advanced: int | None = None
    """Epoch in which it began to blend in."""
    fossilized: int | None = None
    """Epoch in which it was fossilised."""
    pruned: int | None = None
    """Epoch in which PRUNE was decided, or the host removed it."""
    contribution: float | None = None
    """The last one known at a decision about it: validation accuracy with the seed minus without."""
    fate: str = "alive"
    """fossilized, pruned, or alive: as it was when the episode (or the record) ended."""

    def be_born(self, event: SeedGerminated | DecisionTaken) -> None:
        """Take over what is known of the seed at its germination."""
        self.blueprint = self.blueprint or event.blueprint
        self.style = self.style or (event.style and event.style.value)
        if isinstance(event, SeedGerminated):
            self.parameters = event.parameters

    def live_on(self, event: StageChanged | SeedFading | DecisionTaken, epoch: int | None) -> None:
        """Apply what happened to the seed in an epoch after its germination."""
        if isinstance(event, DecisionTaken):
            self.decide(event.op, epoch, event.contribution)
        elif isinstance(event, SeedFading):
            self.end("pruned", epoch)
        elif event.before is Stage.TRAINING and event.after is Stage.BLENDING:
            self.advanced = epoch if self.advanced is None else self.advanced
        elif event.after is Stage.FOSSILIZED:
            self.end("fossilized", epoch)
        elif event.before.is_live and event.after in (Stage.EMBARGOED, Stage.DORMANT):
            self.end("pruned", epoch)

    def decide(self, op: LifecycleOp, epoch: int | None, contribution: float | None) -> None:
        """Apply a decision about the seed."""
        if contribution is not None:
            self.contribution = contribution
        if op is LifecycleOp.ADVANCE:
            self.advanced = epoch if self.advanced is None else self.advanced
        elif op is LifecycleOp.FOSSILIZE:
            self.end("fossilized", epoch)
        elif op is LifecycleOp.PRUNE:
            self.end("pruned", epoch)

    def end(self, fate: str, epoch: int | None) -> None:
        """Set the fate, unless it is set: a seed that fades was pruned when that was decided."""
        if self.fate == "alive":
            self.fate = fate
            if fate == "pruned":
                self.pruned = epoch
            else:
                self.fossilized = epoch


def seed_lives(records: Iterable[Record]) -> list[SeedLife]:
    """Every seed of a run, in the order of germination."""
    found: list[SeedLife] = []
    growing: dict[
        tuple[int | None, int | None], dict[str, SeedLife]
    ] = {}  # (env, episode) -> slot -> last life
    for record in records:
        event, place = record.event, record.place
        here = place.env, place.episode
        if isinstance(event, EpisodeFinished):
            growing.pop(here, None)
        elif isinstance(event, SeedGerminated | StageChanged | SeedFading | DecisionTaken) and event.slot:
            life = growing.get(here, {}).get(event.slot)
            if isinstance(event, SeedGerminated) or (
                isinstance(event, DecisionTaken) and event.op is LifecycleOp.GERMINATE
            ):
                if life is None or life.fate == "pruned":  # else the birth was recorded before, by the other
                    life = SeedLife(place.round, place.env, place.episode, event.slot, born=place.epoch)
                    growing.setdefault(here, {})[event.slot] = life
                    found.append(life)
                life.be_born(event)
            elif life is not None:
                life.live_on(event, place.epoch)
    return found
