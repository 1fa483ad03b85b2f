"""Which seeds were kept: counted from the lines of decisions, without parsing more of them than is needed."""

import re
from dataclasses import dataclass, replace

from esper.karn.seeds import SeedLife
from esper.karn.texts import clipped
from esper.karn.watch.lines import real
from esper.leyline import DecisionTaken, LifecycleOp
from esper.nissa.wire import BrokenLine, UnknownKind, decode_event

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
    pruned: int = 0
    known: int = 0
    """Seeds whose contribution was known at a decision about them."""
    total: float = 0.0
    """Sum of the last contributions of those seeds."""

    def add(self, life: SeedLife, sign: int = 1) -> None:
        """Count a seed, or with sign -1 take it out."""
        self.germinated += sign
        self.fossilized += sign * (life.fate == "fossilized")
        self.pruned += sign * (life.fate == "pruned")
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
        contribution = None if number is None else real(float(number[1]))
        names = slot.decode("utf-8", "replace"), blueprint.decode("utf-8", "replace")
        self._take(int(env), int(episode), _OPS[op], *names, contribution)

    def _decide_slowly(self, line: bytes) -> None:
        """Fields in another order, escapes in a name, or no valid line at all."""
        try:
            event = decode_event(line)
        except (BrokenLine, UnknownKind):
            return
        if isinstance(event, DecisionTaken) and event.slot is not None:
            contribution = real(event.contribution)
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
