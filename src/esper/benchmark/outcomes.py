"""Outcomes of open-loop schedules, computed once, and the tabular benchmark over them.

    drawn      a grid of schedules on draws that controllers may train on: the search for the single best one (SBS)
    held out   a portfolio of them on the frozen instances, with host seeds that no table is scored on (VBS)

`benchmarks/make_outcomes.py` makes such a file; those of the shipped suites are in `shipped/` beside this one.

In the tabular benchmark a chooser picks a schedule for each host, and is judged in seconds:

    bench = TabularBench(Outcomes.read(path))
    scores = bench.score(lambda context: "germinate mixer@1 t=0; advance 1 t=1" if ... else WAITING)
    print(bench.compare(scores))
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib.resources import files
from itertools import product
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import TypeAdapter

from esper.benchmark.rows import RowsError, arrow_schema
from esper.leyline.utility import utility
from esper.statistics import Estimate, Floats, Resamples, Scores, paired_difference, share_of_gap

WAITING = ""
"""The schedule that does nothing."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One schedule on one host."""

    held_out: bool
    case: str
    schedule: str
    seed: int
    validation_accuracy: float | None
    """None for a condemned host, which is worth nothing."""
    test_accuracy: float | None
    host_parameters: int
    added_parameters: int | None
    rent: float
    training_flops: float | None
    contribution: float | None
    """Leave-one-out contribution of the only seed, at the end; None where there was not exactly one."""
    validation_accuracies: tuple[float, ...]
    """After each epoch of waiting; empty for other schedules."""
    train_accuracies: tuple[float | None, ...]

    @property
    def utility(self) -> float:
        """Validation accuracy minus rent; what schedules are chosen by."""
        return self._worth(self.validation_accuracy)

    @property
    def score(self) -> float:
        """Test accuracy minus rent; what is reported."""
        return self._worth(self.test_accuracy)

    def _worth(self, accuracy: float | None) -> float:
        if accuracy is None or self.added_parameters is None:
            return 0.0
        return utility(accuracy, self.rent, self.added_parameters, self.host_parameters)


_SCHEMA = arrow_schema(Outcome)


class Outcomes:
    """Outcomes as dense tables (case, schedule, seed)."""

    def __init__(self, rows: Iterable[Outcome]) -> None:
        self.rows = tuple(rows)
        if not self.rows:
            raise RowsError("there are no outcomes")

    def part(self, *, held_out: bool) -> "Outcomes":
        """The outcomes on the held-out instances, or on the drawn ones."""
        return Outcomes(row for row in self.rows if row.held_out == held_out)

    @cached_property
    def by_key(self) -> dict[tuple[str, str, int], Outcome]:
        """(case, schedule, seed) -> outcome"""
        return {(row.case, row.schedule, row.seed): row for row in self.rows}

    @cached_property
    def cases(self) -> tuple[str, ...]:
        """In the order of the rows."""
        return tuple(dict.fromkeys(row.case for row in self.rows))

    @cached_property
    def seeds(self) -> tuple[int, ...]:
        """In ascending order."""
        return tuple(sorted({row.seed for row in self.rows}))

    @cached_property
    def schedules(self) -> tuple[str, ...]:
        """Those that were played on every case and seed."""
        full, counts = len(self.cases) * len(self.seeds), Counter(row.schedule for row in self.rows)
        complete = tuple(schedule for schedule, count in counts.items() if count == full)
        if not complete:
            raise RowsError(
                f"no schedule was played on all of {len(self.cases)} cases and {len(self.seeds)} seeds"
            )
        return complete

    @cached_property
    def utility(self) -> Floats:
        """(case, schedule, seed), on validation."""
        return self._table(lambda row: row.utility)

    @cached_property
    def score(self) -> Floats:
        """(case, schedule, seed), on the test split."""
        return self._table(lambda row: row.score)

    def _table(self, value: Callable[[Outcome], float]) -> Floats:
        keys = product(self.cases, self.schedules, self.seeds)
        values = np.array([value(self.by_key[key]) for key in keys])
        return values.reshape(len(self.cases), len(self.schedules), len(self.seeds))

    def single_best(self) -> str:
        """The schedule with the highest mean utility, on validation, over all cases."""
        return self.schedules[int(self.utility.mean(axis=(0, 2)).argmax())]

    def best_of_each(self) -> dict[str, str]:
        """case -> the schedule with the highest mean utility, on validation, over its seeds."""
        best = self.utility.mean(axis=2).argmax(axis=1)
        return {case: self.schedules[int(place)] for case, place in zip(self.cases, best, strict=True)}

    def write(self, path: Path) -> None:
        """Write a parquet file, in few bytes."""
        path.parent.mkdir(parents=True, exist_ok=True)
        table = pa.Table.from_pylist([asdict(row) for row in self.rows], schema=_SCHEMA)
        pq.write_table(table, path, compression="zstd", compression_level=19)

    @staticmethod
    def read(path: Path) -> "Outcomes":
        """Read what `write` wrote; raises RowsError for anything else."""
        try:
            records = pq.read_table(path).cast(_SCHEMA).to_pylist()
            return Outcomes(TypeAdapter(list[Outcome]).validate_python(records))
        except (OSError, pa.ArrowInvalid, pa.ArrowTypeError, ValueError) as error:
            raise RowsError(f"{path}: no outcomes of schedules can be read from it ({error})") from None


def shipped_outcomes(suite: str) -> Path | None:
    """The file of outcomes that comes with Esper for a suite; None if there is none."""
    path = Path(str(files("esper.benchmark").joinpath("shipped", f"{suite}.parquet")))
    return path if path.is_file() else None


def grown(blueprint: str, slot: int, born: int) -> str:
    """One seed, in isolation for one epoch, then blended in."""
    return f"germinate {blueprint}@{slot} t={born}; advance {slot} t={born + 1}"


# The tabular benchmark


@dataclass(frozen=True, slots=True)
class Context:
    """What waiting on a host showed, before anything is grown: what a chooser may look at."""

    case: str
    seed: int
    validation_accuracies: tuple[float, ...]
    """After 0, 1, ... epochs."""
    train_accuracies: tuple[float | None, ...]


Chooser = Callable[[Context], str]
"""Picks a schedule."""


@dataclass(frozen=True, slots=True)
class TabularComparison:
    """A chooser against SBS and VBS, paired over the hosts, on the test split."""

    over_sbs: Estimate
    """Its score minus SBS's."""
    gap: Estimate
    """VBS minus SBS: what there is to win."""
    share: Estimate
    """The part of that gap that it won."""


class TabularBench:
    """The held-out part of some outcomes as a benchmark: every schedule on every host is known.

    look  epochs of waiting that a chooser may see
    """

    def __init__(self, outcomes: Outcomes, *, look: int = 4) -> None:
        self.table = outcomes.part(held_out=True)
        self.sbs_schedule = outcomes.part(held_out=False).single_best()
        self.look = look
        for schedule in (WAITING, self.sbs_schedule):
            if schedule not in self.table.schedules:
                raise ValueError(f"schedule {schedule!r} was not played on every held-out host")

    def context(self, case: str, seed: int) -> Context:
        """What a chooser sees of one host."""
        row = self.table.by_key[case, WAITING, seed]
        seen = self.look + 1
        return Context(case, seed, row.validation_accuracies[:seen], row.train_accuracies[:seen])

    def score(self, choose: Chooser) -> Scores:
        """(1, case, seed): the test utility of what was chosen for each host."""
        table = self.table
        chosen = [choose(self.context(case, seed)) for case, seed in product(table.cases, table.seeds)]
        unknown = set(chosen) - set(table.schedules)
        if unknown:
            raise ValueError(
                f"schedule {min(unknown)!r} is not in the table; `.table.schedules` has the {len(table.schedules)}"
            )
        places = np.array([table.schedules.index(schedule) for schedule in chosen])
        return self._taken(places.reshape(len(table.cases), len(table.seeds)))

    def sbs(self) -> Scores:
        """The single best schedule of the drawn cases."""
        return self.score(lambda _: self.sbs_schedule)

    def vbs(self) -> Scores:
        """The best schedule of each case, chosen for each host on the case's other hosts, on validation."""
        utility, seeds = self.table.utility, len(self.table.seeds)
        if seeds < 2:
            raise ValueError(
                "the table has one seed a case; VBS is chosen on other seeds than it is scored on"
            )
        others = (utility.sum(axis=2, keepdims=True) - utility) / (seeds - 1)  # (case, schedule, seed)
        return self._taken(others.argmax(axis=1))

    def oracle(self) -> Scores:
        """The best schedule of each host in hindsight, on the test split itself: nothing can score more."""
        best: Scores = self.table.score.max(axis=1)[None]
        return best

    def compare(self, scores: Scores) -> TabularComparison:
        """Scores (member, case, seed) against SBS and VBS."""
        sbs, vbs = self.sbs(), self.vbs()
        resamples = Resamples(len(self.table.cases), len(self.table.seeds))
        return TabularComparison(
            over_sbs=resamples.estimate_of_means(paired_difference, scores, sbs),
            gap=resamples.estimate_of_means(paired_difference, vbs, sbs),
            share=resamples.estimate_of_means(share_of_gap, scores, sbs, vbs),
        )

    def _taken(self, places: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> Scores:
        """places (case, seed) of schedules -> (1, case, seed)"""
        taken: Scores = np.take_along_axis(self.table.score, places[:, None, :], axis=1).swapaxes(0, 1)
        return taken
