"""Outcomes of open-loop schedules, computed once.

    drawn      a grid of schedules on draws that controllers may train on: the search for the single best one (SBS)
    held out   a portfolio of them on the frozen instances, with host seeds that no table is scored on (VBS)

`benchmarks/make_outcomes.py` makes such a file; those of the shipped suites are in `shipped/` beside this one.
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
from esper.statistics import Floats

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
    """Of the product, or the mean over a life. None for a condemned host, which is worth nothing."""
    test_accuracy: float | None
    host_parameters: int
    added_parameters: int | None
    """Of the product, or the mean over a life."""
    rent: float
    training_flops: float | None
    contribution: float | None
    """Leave-one-out contribution of the only seed, at the end; None where there was not exactly one."""
    validation_accuracies: tuple[float, ...]
    """Before the first epoch and after each, of waiting; of other schedules where the life counts, else empty."""
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
                f"no schedule was played on all of {len(self.cases)} instances and {len(self.seeds)} seeds"
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

    def portfolio(self, size: int) -> tuple[str, ...]:
        """Waiting, the single best, and then greedily the schedule that adds most to the best of each case."""
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


def grown(blueprint: str, slot: int | str, born: int) -> str:
    """One seed, in isolation for one epoch, then blended in."""
    return f"germinate {blueprint}@{slot} t={born}; advance {slot} t={born + 1}"
