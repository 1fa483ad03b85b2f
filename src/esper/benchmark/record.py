"""What a benchmark is, written beside its rows: enough to go on with it, and to say where a table came from."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import JsonValue, TypeAdapter, ValidationError

from esper.benchmark.rows import BenchRow, RowsError, require_rows
from esper.benchmark.suites import subsets
from esper.benchmark.table import BenchTable, bench_table
from esper.leyline.errors import EsperError
from esper.leyline.files import write_bytes

if TYPE_CHECKING:
    from esper.benchmark.runner import BenchPlan


_FILE = "bench.json"


class BenchMismatch(EsperError, ValueError):
    """Rows of another benchmark are where this one's are to go."""


@dataclass(frozen=True, slots=True)
class BenchRecord:
    suite: str
    instances: tuple[str, ...]
    seeds: int
    arms: dict[str, str]
    """arm -> what it is: rows of another arm of the same name are not mixed with its own"""
    reference: str
    """The arm that static, from_birth and the like are matched to."""
    treatments: tuple[str, ...]
    """The arms that the verdict is about."""
    headroom: tuple[str, str] | None
    """The arms that the headroom gate is made of: SBS and VBS."""
    provenance: tuple[dict[str, JsonValue], ...]
    """One for each time it was started."""


_RECORD = TypeAdapter(BenchRecord)


def record_of(plan: "BenchPlan", provenance: Mapping[str, JsonValue]) -> BenchRecord:
    names = [arm.name for arm in plan.arms]
    return BenchRecord(
        suite=plan.suite.name,
        instances=plan.suite.instances,
        seeds=plan.seeds,
        arms={arm.name: arm.identity for arm in plan.arms},
        reference=plan.reference,
        treatments=plan.treatments,
        headroom=("sbs", "vbs") if {"sbs", "vbs"} <= set(names) else None,
        provenance=(dict(provenance),),
    )


def read_record(folder: Path) -> BenchRecord:
    path = folder / _FILE
    try:
        return _RECORD.validate_json(path.read_bytes())
    except FileNotFoundError:
        raise RowsError(f"{folder} holds no benchmark: there is no {_FILE} in it") from None
    except ValidationError as error:
        raise RowsError(f"{path}: {error.errors()[0]['msg']}") from None


def merge_record(folder: Path, new: BenchRecord) -> BenchRecord:
    """Go on with what is in the folder, or begin; arms, seeds and instances may be added, not changed."""
    if (folder / _FILE).exists():
        old = read_record(folder)
        if old.suite != new.suite:
            raise BenchMismatch(
                f"{folder} holds a benchmark of {old.suite}, not of {new.suite}: choose another"
            )
        for name, identity in new.arms.items():
            if old.arms.get(name, identity) != identity:
                raise BenchMismatch(
                    f"{folder} has rows of another {name} ({old.arms[name]}; now {identity}): choose another folder"
                )
        new = replace(
            new,
            instances=tuple(dict.fromkeys((*old.instances, *new.instances))),
            arms={**old.arms, **new.arms},
            seeds=max(old.seeds, new.seeds),
            treatments=tuple(dict.fromkeys((*old.treatments, *new.treatments))),
            headroom=new.headroom or old.headroom,
            provenance=(*old.provenance, *new.provenance),
        )
    write_bytes(folder / _FILE, (json.dumps(asdict(new), indent=1) + "\n").encode())
    return new


# A benchmark read back from its folder: its record, its rows, and the tables made from them.


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
