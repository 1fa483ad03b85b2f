"""Which seeds earned their keep: counted while lines go by, without reading more of them than is needed."""

import re
from dataclasses import dataclass

from esper.karn.watch.lines import fields_of, real, whole
from esper.karn.watch.texts import clipped
from esper.leyline import LifecycleOp

_HEAD = re.compile(
    rb'\{"kind":"decision_taken","time":[^,]+,"round":\d{1,18},"env":(\d{1,18}),"episode":(\d{1,18}),"epoch":\d+,'
    rb'"op":"([A-Z_]+)","slot":"([^"\\]*)","blueprint":(?:null|"([^"\\]*)")'
)
"""A decision about a slot as our own writer puts it. Whatever else is valid goes the slow way."""
_CONTRIBUTION = re.compile(rb'"contribution":(-?\d+(?:\.\d+)?(?:[eE][+-]?\d{1,3})?)[,}]')
_GERMINATE, _PRUNE, _FOSSILIZE = (
    op.name.encode() for op in (LifecycleOp.GERMINATE, LifecycleOp.PRUNE, LifecycleOp.FOSSILIZE)
)
_OP, _WAIT = b'"op":"', b'WAIT"'
_OP_WITHIN = 240
"""Bytes of a decision in which its operation is written, by our writer."""


class Life:
    """One seed, as far as it was told."""

    __slots__ = ("blueprint", "contribution", "fate", "slot")

    def __init__(self, blueprint: bytes, slot: bytes) -> None:
        self.blueprint, self.slot = blueprint, slot
        self.fate = b""
        """FOSSILIZE, PRUNE, or nothing yet."""
        self.contribution: float | None = None
        """The last that was known when it was decided about."""


@dataclass(frozen=True, slots=True)
class SeedCount:
    """The seeds of one blueprint at one slot."""

    blueprint: str
    slot: str
    germinated: int
    fossilized: int
    pruned: int
    contribution: float | None
    """Mean of the last ones known when deciding about a seed; None if none was."""

    @property
    def undecided(self) -> int:
        """Neither fossilised nor pruned when their episode, or the record, ended."""
        return self.germinated - self.fossilized - self.pruned


class _Sums:
    """Over the lives of one kind, kept up to date so that nobody need count them all again."""

    __slots__ = ("contribution", "fossilized", "germinated", "known", "pruned")

    def __init__(self) -> None:
        self.germinated = self.fossilized = self.pruned = self.known = 0
        self.contribution = 0.0

    def add(self, life: Life, sign: int = 1) -> None:
        self.germinated += sign
        self.fossilized += sign * (life.fate == _FOSSILIZE)
        self.pruned += sign * (life.fate == _PRUNE)
        if life.contribution is not None:
            self.known += sign
            self.contribution += sign * life.contribution


class SeedTally:
    """The lives of a run's seeds, from its decisions in the order in which they were told."""

    __slots__ = ("_growing", "_sums")

    def __init__(self) -> None:
        self._sums: dict[tuple[bytes, bytes], _Sums] = {}
        """(blueprint, slot) -> its lives."""
        self._growing: dict[bytes, tuple[bytes, dict[bytes, Life]]] = {}
        """env -> the episode it is in, and the last life at each slot; names and numbers as written."""

    def decide(self, line: bytes) -> None:
        """Take in a decision."""
        at = line.find(_OP, 0, _OP_WITHIN)
        if line.startswith(_WAIT, at + len(_OP)):
            return
        found = _HEAD.match(line)
        if found is None or not line.endswith(b"}"):  # another writer's, or cut off
            self._decide_slowly(line)
            return
        env, episode, op, slot, blueprint = found.groups()
        number = None if op == _GERMINATE else _CONTRIBUTION.search(line, found.end())
        contribution = None if number is None else real(float(number[1]))
        self._take(env, episode, op, slot, blueprint or b"", contribution)

    def _take(
        self,
        env: bytes,
        episode: bytes,
        op: bytes,
        slot: bytes,
        blueprint: bytes,
        contribution: float | None,
    ) -> None:
        place = self._growing.get(env)
        if (
            place is None or place[0] != episode
        ):  # the episode before is over: its slots are not heard of again
            place = self._growing[env] = (episode, {})
        if op == _GERMINATE:
            life = place[1][slot] = Life(blueprint, slot)
            self._sums_of(life).add(life)
            return
        known = place[1].get(slot)
        if known is None:
            return
        sums = self._sums_of(known)
        sums.add(known, -1)
        if contribution is not None:
            known.contribution = contribution
        if op in (_PRUNE, _FOSSILIZE) and not known.fate:
            known.fate = op
        sums.add(known)

    def _sums_of(self, life: Life) -> _Sums:
        return self._sums.setdefault((life.blueprint, life.slot), _Sums())

    def counts(self) -> list[SeedCount]:
        """By blueprint and slot; the most germinated first."""
        counted = [
            SeedCount(
                clipped(blueprint.decode("utf-8", "replace"), 60),
                clipped(slot.decode("utf-8", "replace"), 60),
                sums.germinated,
                sums.fossilized,
                sums.pruned,
                sums.contribution / sums.known if sums.known else None,
            )
            for (blueprint, slot), sums in list(self._sums.items())  # another visitor's look may add some
        ]
        return sorted(counted, key=lambda row: (-row.germinated, row.blueprint, row.slot))

    def _decide_slowly(self, line: bytes) -> None:
        """Fields in another order, escapes in a name, or no valid line at all."""
        data = fields_of(line)
        if data is None:
            return
        round_number, env, episode = (whole(data.get(name)) for name in ("round", "env", "episode"))
        op, slot, blueprint = (data.get(name) for name in ("op", "slot", "blueprint"))
        if round_number is None or env is None or episode is None:
            return
        if isinstance(op, str) and isinstance(slot, str):
            op_name, slot_name, grown = (
                text.encode("utf-8", "replace") if isinstance(text, str) else b""
                for text in (op, slot, blueprint)
            )
            contribution = real(data.get("contribution"))
            self._take(b"%d" % env, b"%d" % episode, op_name, slot_name, grown, contribution)
