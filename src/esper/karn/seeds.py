"""The lives of seeds, put together from what a run recorded, and how many of them were kept.

A training run records a seed's life twice: in the controller's decisions and in the host's own events. A user's loop
has only the latter, a world without training only the former; either is enough, and both together make one life.
The rules are methods of `SeedLife`: SQL applies them to typed events, the live page to a few fields of each decision.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from esper.karn.drawing import clipped, finite
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
from esper.nissa.event_file import decode_event

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
    retired: int | None = None
    """Epoch in which RETIRE was decided."""
    contribution: float | None = None
    """The last one known at a decision about it: validation accuracy with the seed minus without."""
    fate: str = "alive"
    """fossilized, retired, pruned, or alive: as it was when the episode (or the record) ended."""

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
            self.end("retired" if self.fate == "fossilized" else "pruned", epoch)
        elif event.before is Stage.TRAINING and event.after is Stage.BLENDING:
            self.advanced = epoch if self.advanced is None else self.advanced
        elif event.after is Stage.FOSSILIZED:
            self.end("fossilized", epoch)
        elif event.before is Stage.FOSSILIZED:
            self.end("retired", epoch)
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
        elif op is LifecycleOp.RETIRE:
            self.end("retired", epoch)

    def end(self, fate: str, epoch: int | None) -> None:
        """Set the fate, unless it is set: a seed that fades was pruned when that was decided. A fossil may retire."""
        if self.fate == ("fossilized" if fate == "retired" else "alive"):
            self.fate = fate
            setattr(self, fate, epoch)


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
                if life is None or life.fate in (
                    "pruned",
                    "retired",
                ):  # else the birth was recorded before, by the other
                    life = SeedLife(place.round, place.env, place.episode, event.slot, born=place.epoch)
                    growing.setdefault(here, {})[event.slot] = life
                    found.append(life)
                life.be_born(event)
            elif life is not None:
                life.live_on(event, place.epoch)
    return found


# Counted for the live page from the lines of decisions, without parsing more of them than is needed


_HEAD = re.compile(
    rb'\{"kind":"decision_taken","time":[^,]+,"round":\d{1,18},"env":(\d{1,18}),"episode":(\d{1,18}),"epoch":\d+,'
    rb'"op":"([A-Z_]+)","slot":"([^"\\]*)","blueprint":(?:null|"([^"\\]*)")'
)
"""A decision about a slot as our own writer puts it; other lines are decoded as a whole."""
_CONTRIBUTION = re.compile(rb'"contribution":(-?\d+(?:\.\d+)?(?:[eE][+-]?\d{1,3})?)[,}]')
_OPS = {op.name.encode(): op for op in LifecycleOp}
_OP, _WAIT = b'"op":"', b'WAIT"'
_OP_WITHIN = 240
"""Bytes of a decision in which its operation is written, by our writer."""


@dataclass(slots=True)
class SeedCount:
    """The seeds of one blueprint at one slot, kept up to date so that they need not all be counted again."""

    blueprint: str
    slot: str
    germinated: int = 0
    fossilized: int = 0
    """Seeds that were, also those that were retired later."""
    pruned: int = 0
    retired: int = 0
    known: int = 0
    """Seeds whose contribution was known at a decision about them."""
    total: float = 0.0
    """Sum of the last contributions of those seeds."""

    def add(self, life: SeedLife, sign: int = 1) -> None:
        """Count a seed, or with sign -1 take it out."""
        self.germinated += sign
        self.fossilized += sign * (life.fate in ("fossilized", "retired"))
        self.pruned += sign * (life.fate == "pruned")
        self.retired += sign * (life.fate == "retired")
        if life.contribution is not None:
            self.known += sign
            self.total += sign * life.contribution

    @property
    def contribution(self) -> float | None:
        """Mean of the last contributions; None if none was known."""
        return self.total / self.known if self.known else None

    @property
    def undecided(self) -> int:
        """Seeds neither fossilised nor pruned when their episode, or the record, ended."""
        return self.germinated - self.fossilized - self.pruned


class SeedTally:
    """Counts the seeds of a run from its decisions, given in the order in which they were recorded."""

    __slots__ = ("_counts", "_growing")

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], SeedCount] = {}
        """(blueprint, slot) -> its seeds."""
        self._growing: dict[int, tuple[int, dict[str, SeedLife]]] = {}
        """env -> the episode it is in, and the last life at each slot."""

    def decide(self, line: bytes) -> None:
        """Count a decision. A line that is none is ignored."""
        at = line.find(_OP, 0, _OP_WITHIN)
        if line.startswith(_WAIT, at + len(_OP)):
            return
        found = _HEAD.match(line)
        if found is None or found[3] not in _OPS or not line.endswith(b"}"):  # another writer's, or cut off
            self._decide_slowly(line)
            return
        env, episode, op, slot, blueprint = found.groups(default=b"")
        number = _CONTRIBUTION.search(line, found.end())
        contribution = None if number is None else finite(float(number[1]))
        names = slot.decode("utf-8", "replace"), blueprint.decode("utf-8", "replace")
        self._take(int(env), int(episode), _OPS[op], *names, contribution)

    def _decide_slowly(self, line: bytes) -> None:
        """Fields in another order, escapes in a name, or no valid line at all."""
        event = decode_event(line)
        if isinstance(event, DecisionTaken) and event.slot is not None:
            contribution = finite(event.contribution)
            self._take(event.env, event.episode, event.op, event.slot, event.blueprint or "", contribution)

    def _take(
        self, env: int, episode: int, op: LifecycleOp, slot: str, blueprint: str, contribution: float | None
    ) -> None:
        place = self._growing.get(env)
        if place is None or place[0] != episode:  # the episode before has ended
            place = self._growing[env] = (episode, {})
        if op is LifecycleOp.GERMINATE:
            life = place[1][slot] = SeedLife(None, env, episode, slot, blueprint)
            self._count(life).add(life)
        elif slot in place[1]:
            life = place[1][slot]
            count = self._count(life)
            count.add(life, -1)
            life.decide(op, None, contribution)
            count.add(life)

    def _count(self, life: SeedLife) -> SeedCount:
        kind = life.blueprint or "", life.slot
        return self._counts.setdefault(kind, SeedCount(clipped(kind[0], 60), clipped(kind[1], 60)))

    def counts(self) -> list[SeedCount]:
        """By blueprint and slot; the most germinated first."""
        counted = [replace(count) for count in list(self._counts.values())]  # another thread may add to them
        return sorted(counted, key=lambda row: (-row.germinated, row.blueprint, row.slot))
