"""A benchmark read back from its folder: its record, its rows, and the tables made from them."""

from dataclasses import dataclass
from pathlib import Path

from esper.simic.bench.comparison import BenchTable, bench_table
from esper.simic.bench.record import BenchRecord, read_record
from esper.simic.bench.rows import BenchRow, require_rows
from esper.simic.bench.suites import subsets


@dataclass(frozen=True, slots=True)
class BenchResult:
    record: BenchRecord
    rows: tuple[BenchRow, ...]
    tables: tuple[BenchTable, ...]
    """Of everything first, then of the subsets that are reported on their own."""


def read_bench(folder: Path) -> BenchResult:
    """From what is in the folder alone."""
    record = read_record(folder)
    places = {instance: place for place, instance in enumerate(record.instances)}
    rows = tuple(sorted(require_rows(folder), key=lambda row: places.get(row.instance, len(places))))
    whole = bench_table(rows, record.treatments, order=tuple(record.arms))
    parts = (
        bench_table(rows, record.treatments, instances=instances, subset=name, order=tuple(record.arms))
        for name, instances in subsets(whole.instances).items()
        if name != whole.subset
    )
    return BenchResult(record, rows, (whole, *parts))
