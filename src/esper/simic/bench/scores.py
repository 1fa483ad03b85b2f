"""Rows as arrays: what every arm scored on the same hosts."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from esper.simic.bench.rows import BenchRow, RowsError
from esper.simic.statistics import Scores

Value = Callable[[BenchRow], float | None]


@dataclass(frozen=True, slots=True)
class ScoreTable:
    """Every arm on the same instances and seeds. Values that are not known are NaN."""

    instances: tuple[str, ...]
    seeds: tuple[int, ...]
    arms: dict[str, Scores]
    """arm -> (member, instance, seed)"""
    rows: dict[str, list[BenchRow]]
    """arm -> its rows on these hosts"""
    left_out: tuple[str, ...]
    """Instances that not every arm has played with every seed."""

    @property
    def hosts(self) -> int:
        return len(self.instances) * len(self.seeds)

    def values(self, arm: str, value: Value) -> Scores:
        """(member, instance, seed) of something else than the score."""
        return _array(self.rows[arm], self.instances, self.seeds, value)

    def on(self, instances: Sequence[str]) -> "ScoreTable":
        """The same for some of the instances."""
        chosen = set(instances)
        rows = [row for rows in self.rows.values() for row in rows if row.instance in chosen]
        return score_table(rows)


def score_table(rows: Iterable[BenchRow]) -> ScoreTable:
    """Balanced: only instances that every arm, with all its members, has played with all seeds."""
    rows = list(rows)
    if not rows:
        raise RowsError("there are no rows to make a table of")
    seeds = tuple(sorted({row.seed for row in rows}))
    members: dict[str, set[int]] = defaultdict(set)
    for row in rows:
        members[row.arm].add(row.member)
    wanted = len(seeds) * sum(map(len, members.values()))
    counts: dict[str, int] = defaultdict(int)
    for row in rows:
        counts[row.instance] += 1
    instances = tuple(instance for instance, count in counts.items() if count == wanted)
    if not instances:
        raise RowsError(
            f"no instance was played by every arm with every seed yet: {len(rows)} rows, {wanted} make one"
        )
    whole = set(instances)
    by_arm = {arm: [row for row in rows if row.arm == arm and row.instance in whole] for arm in members}
    return ScoreTable(
        instances=instances,
        seeds=seeds,
        arms={arm: _array(by_arm[arm], instances, seeds, lambda row: row.score) for arm in by_arm},
        rows=by_arm,
        left_out=tuple(instance for instance in counts if instance not in whole),
    )


def _array(rows: Sequence[BenchRow], instances: Sequence[str], seeds: Sequence[int], value: Value) -> Scores:
    members = sorted({row.member for row in rows})
    array = np.full((len(members), len(instances), len(seeds)), np.nan)
    place = {instance: index for index, instance in enumerate(instances)}
    for row in rows:
        known = value(row)
        if known is not None:
            array[members.index(row.member), place[row.instance], seeds.index(row.seed)] = known
    return array
