"""`esper.bench`, and the folder it plays into: the record beside the rows, and the result read back from both."""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path

from pydantic import JsonValue, TypeAdapter, ValidationError

from esper.benchmark.arms import LearnedArm, ScheduleArm
from esper.benchmark.planning import BenchPlan, BenchRequest, plan_bench
from esper.benchmark.rows import BenchRow, RowsError, RowStore
from esper.benchmark.runner import BenchProgress, run_bench
from esper.benchmark.suites import PlanError, subsets
from esper.benchmark.table import BenchTable, bench_table
from esper.leyline.errors import EsperError, first_finding
from esper.leyline.files import write_bytes
from esper.nissa import collect_provenance
from esper.nissa.run_directory import EVENTS_FILE, WriterLock
from esper.simic.env.making import use_one_thread
from esper.simic.offline.dataset import EPISODES_FOLDER
from esper.tolaria.tasks import suite_names
from esper.tolaria.worlds.baselines import NUMERICS
from esper.tolaria.worlds.cluster.connecting import require_cluster
from esper.tolaria.worlds.toy.instance import TOY_SUITES
from esper.tolaria.worlds.worker import end_if_imported

_FILE = "bench.json"


class BenchMismatch(EsperError, ValueError):
    """The folder holds rows of another benchmark."""


@dataclass(frozen=True, slots=True)
class BenchRecord:
    """What was compared, and where and when: `bench.json`."""

    suite: str
    instances: tuple[str, ...]
    seeds: int
    """Hosts of each instance."""
    arms: dict[str, str]
    """arm -> its identity: rows of another arm of the same name are not mixed with its own"""
    reference: str
    """The arm that static, from_birth and the like are matched to."""
    treatments: tuple[str, ...]
    """The arms that the verdict is about."""
    provenance: tuple[dict[str, JsonValue], ...]
    """One for each time it was started."""
    numerics: int | None = None
    """NUMERICS of the engine that played it; None where that was not recorded."""
    schedules: int | None = None
    """How many schedules vbs is the best of; None without it, or where that was not recorded."""
    training_epochs: dict[str, float] = field(default_factory=dict)
    """arm -> epochs of hosts that training one of its controllers took, where that is known"""


@dataclass(frozen=True, slots=True)
class BenchResult:
    """How a benchmark ended: its rows, and the tables made from them."""

    directory: Path
    """The folder of the rows and the record."""
    interrupted: str | None
    """What stopped it (Ctrl-C, a signal, the clock, a lost process); None if it came to its end."""
    record: BenchRecord
    """What was asked for, and where it was played."""
    rows: tuple[BenchRow, ...]
    """One for each episode."""
    tables: tuple[BenchTable, ...]
    """Of all instances first, then of the subsets that are reported on their own; none while no instance was
    played by every arm with every seed."""


@contextmanager
def only_bench(folder: Path) -> Iterator[None]:
    """Make the folder if need be, and keep other benches out of it: two would remove each other's rows."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RowsError(
            f"{folder} cannot hold a benchmark ({error.strerror}): choose another folder with --out"
        ) from None
    if (folder / EVENTS_FILE).exists():
        raise RowsError(f"{folder} holds a run: choose another folder with --out")
    lock = WriterLock(folder)
    try:
        yield
    finally:
        lock.release()


def record_of(plan: BenchPlan, provenance: Mapping[str, JsonValue]) -> BenchRecord:
    """The record of a plan that is about to be played."""
    return BenchRecord(
        suite=plan.suite.name,
        instances=plan.suite.instances,
        seeds=plan.seeds,
        arms={arm.name: arm.identity for arm in plan.arms},
        reference=plan.reference,
        treatments=plan.treatments,
        provenance=(dict(provenance),),
        numerics=NUMERICS,
        schedules=next(
            (arm.chosen_of for arm in plan.arms if isinstance(arm, ScheduleArm) and arm.chosen_of), None
        ),
        training_epochs={
            arm.name: arm.training_epochs
            for arm in plan.arms
            if isinstance(arm, LearnedArm) and arm.training_epochs is not None
        },
    )


def read_record(folder: Path) -> BenchRecord:
    """The record in a folder; raises RowsError if there is none."""
    path = folder / _FILE
    try:
        return TypeAdapter(BenchRecord).validate_json(path.read_bytes())
    except OSError as error:
        raise RowsError(
            f"{folder} holds no benchmark: {_FILE} in it cannot be read ({error.strerror})"
        ) from None
    except ValidationError as error:
        raise RowsError(f"{path}: {first_finding(error)}") from None


def merge_record(folder: Path, new: BenchRecord) -> BenchRecord:
    """Write the record, or extend the one in the folder: arms, seeds and instances may be added, not changed."""
    if (folder / _FILE).exists():
        old = read_record(folder)
        if old.suite != new.suite:
            raise BenchMismatch(
                f"{folder} holds a benchmark of {old.suite}, not of {new.suite}: choose another folder with --out"
            )
        if old.numerics != new.numerics:
            raise BenchMismatch(
                f"{folder} has rows of other numerics of the engine ({old.numerics or 'not recorded'}; now "
                f"{new.numerics}), which cannot be compared: choose another folder with --out"
            )
        for name, identity in new.arms.items():
            if old.arms.get(name, identity) != identity:
                raise BenchMismatch(
                    f"{folder} has rows of another {name} ({old.arms[name]}; now {identity}): choose another folder "
                    "with --out"
                )
        new = replace(
            new,
            instances=tuple(dict.fromkeys((*old.instances, *new.instances))),
            arms={**old.arms, **new.arms},
            seeds=max(old.seeds, new.seeds),
            treatments=tuple(dict.fromkeys((*old.treatments, *new.treatments))),
            provenance=(*old.provenance, *new.provenance),
            schedules=new.schedules or old.schedules,
            training_epochs={
                **{arm: epochs for arm, epochs in old.training_epochs.items() if arm not in new.treatments},
                **new.training_epochs,  # without those that are unknown
            },
        )
    write_bytes(folder / _FILE, (json.dumps(asdict(new), indent=1) + "\n").encode())
    return new


def read_bench(folder: Path, *, interrupted: str | None = None, partial: bool = False) -> BenchResult:
    """The result, from what is in the folder alone.

    partial  without any instance that every arm has played, return no tables instead of raising RowsError
    """
    record = read_record(folder)
    places = {instance: place for place, instance in enumerate(record.instances)}
    stored = RowStore(folder).read()
    if not stored and not partial:
        raise RowsError(f"{folder} has no rows of a benchmark: `esper bench --out {folder}` makes some")
    rows = tuple(sorted(stored, key=lambda row: places.get(row.instance, len(places))))
    try:
        tables = _tables(rows, record)
    except RowsError:
        if not partial:
            raise
        tables = ()
    return BenchResult(folder, interrupted, record, rows, tables)


def _tables(rows: tuple[BenchRow, ...], record: BenchRecord) -> tuple[BenchTable, ...]:
    places = {arm: place for place, arm in enumerate(record.arms)}
    ordered = sorted(rows, key=lambda row: places.get(row.arm, len(places)))
    known = partial(bench_table, schedules=record.schedules, training_epochs=record.training_epochs)
    whole = known(ordered, record.treatments)
    parts = (
        known(ordered, record.treatments, instances=instances, subset=name)
        for name, instances in subsets(whole.instances).items()
        if name != whole.subset
    )
    return (whole, *parts)


def bench(
    directory: Path | str,
    request: BenchRequest | None = None,
    *,
    workers: int = 0,
    cluster: str | None = None,
    minutes: float = math.inf,
    record_episodes: bool = False,
    progress: Callable[[BenchProgress], None] = lambda _: None,
) -> BenchResult:
    """Play what is asked for into a folder; returns the result, whose `interrupted` says if it was stopped early.

    directory  rows that are there already are not played again, so that a bench which was stopped goes on; one
               process at a time
    request    what to compare, and on which hosts; without it all arms on the whole of `cpu`, which takes hours
    workers    processes to play in; 0 plays in this one. With some, the calling script needs an
               `if __name__ == "__main__":`
    cluster    a Ray cluster to play on: "local" starts one, "auto" joins that of this machine; or HOST:PORT. There,
               0 workers are as many as it has CPUs
    minutes    nothing is begun after so long
    progress   called with how far it is, after each part: `progress=print` for a look
    record_episodes  keep every episode that is played now in the folder `episodes`, as a data set (docs/offline.md)
    """
    if request is None and str(directory) in (*suite_names(), *TOY_SUITES):
        raise PlanError(
            f"directory is {str(directory)!r}, which is a suite: bench it by esper.bench('bench', "
            f"esper.BenchRequest(suite={str(directory)!r}))"
        )
    request = request or BenchRequest()
    if workers > 0:
        end_if_imported()  # before anything is played
    if workers < 0:
        raise PlanError(f"workers is {workers}; expected a whole number >= 0")
    if cluster is not None:
        require_cluster(cluster, request.device)
    use_one_thread()
    directory, plan = Path(directory), plan_bench(request)
    seeds = {"first": plan.first_seed, "hosts": plan.seeds}
    provenance = collect_provenance(seeds=seeds, device=plan.device, precision="fp32")
    with only_bench(directory):
        merge_record(directory, record_of(plan, provenance.model_dump(mode="json")))
        stopped = run_bench(
            plan,
            RowStore(directory),
            workers=workers,
            cluster=cluster,
            minutes=minutes,
            episodes=directory / EPISODES_FOLDER if record_episodes else None,
            progress=progress,
        )
        return read_bench(directory, interrupted=stopped, partial=True)
