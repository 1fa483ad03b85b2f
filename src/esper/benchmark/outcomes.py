"""Outcomes of open-loop schedules, computed once: what the single best and the best of each instance are read from.

    drawn      a grid of schedules on draws that controllers may train on: the search for the single best one (SBS)
    held out   a portfolio of them on the frozen instances, with host seeds that no table is scored on (VBS)

`benchmarks/make_outcomes.py` makes such a file; those of the shipped suites lie in `outcomes/` beside this one.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib.resources import files
from itertools import combinations, product
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from esper.benchmark.rows import BenchRow, RowsError
from esper.leyline.utility import utility
from esper.statistics import Estimate, Floats, Resamples, Scores, paired_difference, share_of_gap

WAITING = ""
"""The schedule that does nothing."""

_SCHEMA = pa.schema(
    [
        ("held_out", pa.bool_()),
        ("case", pa.dictionary(pa.int32(), pa.string())),
        ("schedule", pa.dictionary(pa.int32(), pa.string())),
        ("seed", pa.int32()),
        ("validation_accuracy", pa.float32()),
        ("test_accuracy", pa.float32()),
        ("host_parameters", pa.int32()),
        ("added_parameters", pa.int32()),
        ("rent", pa.float32()),
        ("training_flops", pa.float64()),
        ("contribution", pa.float32()),
        ("validation_accuracies", pa.list_(pa.float32())),
        ("train_accuracies", pa.list_(pa.float32())),
    ]
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One schedule on one host."""

    held_out: bool
    case: str
    schedule: str
    seed: int
    validation_accuracy: float | None
    """None of a condemned host, which is worth nothing."""
    test_accuracy: float | None
    host_parameters: int
    added_parameters: int | None
    rent: float
    training_flops: float | None
    contribution: float | None
    """Leave-one-out of the only seed, at the end; None where there was not exactly one."""
    validation_accuracies: tuple[float, ...]
    """Of waiting, epoch by epoch; empty for other schedules."""
    train_accuracies: tuple[float | None, ...]

    @property
    def utility(self) -> float:
        return self._worth(self.validation_accuracy)

    @property
    def score(self) -> float:
        """The same on the test split."""
        return self._worth(self.test_accuracy)

    def _worth(self, accuracy: float | None) -> float:
        if accuracy is None or self.added_parameters is None:
            return 0.0
        return utility(accuracy, self.rent, self.added_parameters, self.host_parameters)


def outcome_of(row: BenchRow, *, held_out: bool, schedule: str) -> Outcome:
    waits = schedule == WAITING
    return Outcome(
        held_out=held_out,
        case=row.instance,
        schedule=schedule,
        seed=row.seed,
        validation_accuracy=row.validation_accuracy,
        test_accuracy=row.test_accuracy,
        host_parameters=row.host_parameters,
        added_parameters=row.added_parameters,
        rent=row.rent,
        training_flops=row.training_flops,
        contribution=row.seeds[0].contribution if len(row.seeds) == 1 else None,
        validation_accuracies=tuple(value for value in row.validation_accuracies if value is not None)
        if waits
        else (),
        train_accuracies=row.train_accuracies if waits else (),
    )


class Outcomes:
    """Outcomes as dense tables (case, schedule, seed)."""

    def __init__(self, rows: Iterable[Outcome]) -> None:
        self.rows = tuple(rows)
        if not self.rows:
            raise RowsError("there are no outcomes")

    def part(self, *, held_out: bool) -> "Outcomes":
        return Outcomes(row for row in self.rows if row.held_out == held_out)

    @cached_property
    def by_key(self) -> dict[tuple[str, str, int], Outcome]:
        return {(row.case, row.schedule, row.seed): row for row in self.rows}

    @cached_property
    def cases(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(row.case for row in self.rows))

    @cached_property
    def seeds(self) -> tuple[int, ...]:
        return tuple(sorted({row.seed for row in self.rows}))

    @cached_property
    def schedules(self) -> tuple[str, ...]:
        """Those that were played on every case and seed."""
        every = dict.fromkeys(row.schedule for row in self.rows)
        full = len(self.cases) * len(self.seeds)
        counts = dict.fromkeys(every, 0)
        for row in self.rows:
            counts[row.schedule] += 1
        complete = tuple(schedule for schedule in every if counts[schedule] == full)
        if not complete:
            raise RowsError(
                f"no schedule was played on all of {len(self.cases)} cases and {len(self.seeds)} seeds"
            )
        return complete

    @cached_property
    def utility(self) -> Floats:
        """(case, schedule, seed), on validation: what is chosen by."""
        return self._table(lambda row: row.utility)

    @cached_property
    def score(self) -> Floats:
        """(case, schedule, seed), on the test split: what is reported."""
        return self._table(lambda row: row.score)

    def _table(self, value: Callable[[Outcome], float]) -> Floats:
        return np.array(
            [
                [
                    [value(self.by_key[case, schedule, seed]) for seed in self.seeds]
                    for schedule in self.schedules
                ]
                for case in self.cases
            ]
        )

    # Choosing, on validation alone

    def single_best(self) -> str:
        """The schedule with the highest mean utility over all cases."""
        return self.schedules[int(self.utility.mean(axis=(0, 2)).argmax())]

    def best_of_each(self) -> dict[str, str]:
        """case -> the schedule with the highest mean utility over its seeds."""
        best = self.utility.mean(axis=2).argmax(axis=1)
        return {case: self.schedules[int(place)] for case, place in zip(self.cases, best, strict=True)}

    def portfolio(self, size: int) -> tuple[str, ...]:
        """Waiting, the single best, and then greedily whatever adds most to the best of each case."""
        utility = self.utility.mean(axis=2)  # (case, schedule)
        first = dict.fromkeys((WAITING, self.single_best()))
        chosen = [self.schedules.index(schedule) for schedule in first if schedule in self.schedules]
        while len(chosen) < min(size, len(self.schedules)):
            reached = utility[:, chosen].max(axis=1, keepdims=True)
            # Of equals, the better one on average.
            gains = np.maximum(utility, reached).mean(axis=0) + 1e-6 * utility.mean(axis=0)
            gains[chosen] = -np.inf
            chosen.append(int(gains.argmax()))
        return tuple(self.schedules[place] for place in chosen[:size])

    # On disk

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        table = pa.Table.from_pylist([asdict(row) for row in self.rows], schema=_SCHEMA)
        pq.write_table(table, path, compression="zstd", compression_level=19)

    @staticmethod
    def read(path: Path) -> "Outcomes":
        try:
            table = pq.read_table(path)
            records = table.cast(_SCHEMA).to_pylist()
        except (OSError, pa.ArrowInvalid, pa.ArrowTypeError, ValueError) as error:
            raise RowsError(f"{path}: no outcomes of schedules can be read from it ({error})") from None
        return Outcomes(_outcome(record) for record in records)


def _outcome(record: Mapping[str, object]) -> Outcome:
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in record.items()}
    return Outcome(**values)  # type: ignore[arg-type]  # the schema has the types of the fields


def shipped_outcomes(suite: str) -> Path | None:
    path = Path(str(files("esper.benchmark").joinpath("shipped", f"{suite}.parquet")))
    return path if path.is_file() else None


# Schedules


def grown(blueprint: str, slot: int, born: int) -> str:
    """One seed, in isolation for one epoch, then blended in."""
    return f"germinate {blueprint}@{slot} t={born}; advance {slot} t={born + 1}"


def schedule_grid(
    blueprints: Sequence[str],
    slots: Sequence[int],
    births: Sequence[int],
    *,
    paired: Sequence[str] = (),
    paired_birth: int = 0,
) -> tuple[str, ...]:
    """Waiting; one seed of each kind, place and time; and two seeds of the `paired` kinds in different places."""
    singles = [grown(*each) for each in product(blueprints, slots, births)]
    pairs = [
        f"{grown(one, near, paired_birth)}; {grown(other, far, paired_birth)}"
        for near, far in combinations(slots, 2)
        for one, other in product(paired, repeat=2)
    ]
    return (WAITING, *singles, *pairs)


# Tabular mode: controllers that choose among schedules, judged in seconds from outcomes computed once.
#
#     bench = TabularBench(Outcomes.read(path))
#     scores = bench.score(lambda context: "germinate mixer@1 t=0; advance 1 t=1" if ... else WAITING)
#     print(bench.compare(scores))
#
# What a chooser may look at is what waiting on the host showed, up to an epoch, and the size of its training set. The
# oracle is exact: every schedule's outcome on every host is in the table.


@dataclass(frozen=True, slots=True)
class Context:
    """What can be known of a host before anything is grown."""

    case: str
    seed: int
    validation_accuracies: tuple[float, ...]
    """Of waiting, after 0, 1, ... epochs."""
    train_accuracies: tuple[float | None, ...]


Chooser = Callable[[Context], str]


@dataclass(frozen=True, slots=True)
class TabularComparison:
    """Paired over the hosts of the table, on the test split."""

    over_sbs: Estimate
    gap: Estimate
    """VBS - SBS: what there is to win."""
    share: Estimate
    """Of that gap, what was won."""


class TabularBench:
    """The held-out part of some outcomes, as a benchmark.

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
        row = self.table.by_key[case, WAITING, seed]
        seen = self.look + 1
        return Context(case, seed, row.validation_accuracies[:seen], row.train_accuracies[:seen])

    def score(self, choose: Chooser) -> Scores:
        """(1, case, seed): the test utility of what was chosen for each host."""
        table = self.table
        chosen = [[choose(self.context(case, seed)) for seed in table.seeds] for case in table.cases]
        unknown = {schedule for row in chosen for schedule in row} - set(table.schedules)
        if unknown:
            raise ValueError(
                f"schedule {min(unknown)!r} is not in the table; `.table.schedules` has the {len(table.schedules)}"
            )
        places = np.array([[table.schedules.index(schedule) for schedule in row] for row in chosen])
        return self._taken(places)

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
