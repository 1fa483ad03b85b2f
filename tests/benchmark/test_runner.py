"""Running: resumable, the same over processes, stopped when asked, and refused when it cannot work."""

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest

from bench_rows import ROW
from esper.benchmark import BenchProgress, PlanError, RowStore, run_bench, runner
from esper.benchmark.arms import Arm, BlindArm, Hosts, MatchedArm, RuleArm, ScheduleArm
from esper.benchmark.bench import BenchMismatch, merge_record, only_bench, read_bench, read_record, record_of
from esper.benchmark.planning import BenchPlan
from esper.benchmark.playing import play_chunk
from esper.benchmark.rivals import KeepBestArm
from esper.benchmark.rows import BenchRow, RowsError
from esper.benchmark.runner import ATTEMPTS, LOST_PROCESS, Played, _Work
from esper.benchmark.suites import BenchSuite, bench_suite
from esper.nissa.run_directory import EVENTS_FILE
from esper.tolaria.worlds.baselines import NUMERICS

ARMS = (
    RuleArm("wait"),
    RuleArm("probe_and_keep"),
    MatchedArm("from_birth", "probe_and_keep", 1),
    BlindArm("probe_and_keep", 1),
)


def toy_plan(**changes: object) -> BenchPlan:
    plan = BenchPlan(bench_suite("toy").first(3), ARMS, 11, "probe_and_keep", ("probe_and_keep",))
    return replace(plan, **changes)  # type: ignore[arg-type]


def timeless(rows: list[BenchRow]) -> list[BenchRow]:
    return [replace(row, wall_seconds=0.0) for row in rows]


def stopping(after: int) -> Callable[[BenchProgress], None]:
    def stop(progress: BenchProgress) -> None:
        if progress.done >= after:
            raise KeyboardInterrupt

    return stop


def test_every_arm_meets_every_host(tmp_path: Path) -> None:
    told: list[BenchProgress] = []
    plan = toy_plan()
    assert run_bench(plan, RowStore(tmp_path), progress=told.append) is None
    rows = RowStore(tmp_path).read()
    assert len(rows) == len({row.key for row in rows}) == plan.episodes == 3 * 11 * 4
    hosts = {(row.instance, row.seed, row.host_seed) for row in rows}
    assert len(hosts) == 33  # the same for every arm
    assert (told[0].done, told[0].seconds_left, told[0].latest) == (0, None, None)
    assert [each.done for each in told[1:3]] == [8, 11]  # eight side by side, and then the rest
    assert (told[-1].done, told[-1].seconds_left) == (132, 0.0)
    assert (tmp_path / "rows.parquet").exists()


def test_a_long_chunk_is_no_silence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def in_a_thread(*_: object) -> Iterator[tuple[Executor, int]]:
        with ThreadPoolExecutor(1) as pool:
            yield pool, 1

    monkeypatch.setattr(runner, "_executor", in_a_thread)
    monkeypatch.setattr(runner, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr(runner, "_POLL_SECONDS", 0.001)
    told: list[BenchProgress] = []
    plan, waited = toy_plan(seeds=2), Event()

    def patiently(arm: Arm, hosts: Hosts) -> list[BenchRow]:
        assert waited.wait(60.0)
        return play_chunk(arm, hosts)

    def tell(progress: BenchProgress) -> None:
        told.append(progress)
        if len(told) > 1 and progress.latest is None:
            waited.set()

    monkeypatch.setattr(runner, "play_chunk", patiently)
    run_bench(plan, RowStore(tmp_path), progress=tell)
    waiting = [each for each in told[1:] if each.latest is None]
    assert waiting
    assert all(each.done < plan.episodes and each.seconds > 0.0 for each in waiting)
    assert all((each.seconds_left is None) == (each.done == 0) for each in waiting)
    assert waiting[0].seconds_left is None


def test_a_killed_benchmark_goes_on_and_ends_the_same(tmp_path: Path) -> None:
    plan = toy_plan(seeds=2)
    run_bench(plan, RowStore(tmp_path / "whole"))
    with pytest.raises(KeyboardInterrupt):
        run_bench(plan, RowStore(tmp_path / "killed"), progress=stopping(10))
    kept = RowStore(tmp_path / "killed").read()
    assert len(kept) == 10
    told: list[BenchProgress] = []
    run_bench(plan, RowStore(tmp_path / "killed"), progress=told.append)
    assert told[0].done == 10
    rows = RowStore(tmp_path / "killed").read()
    assert timeless(rows) == timeless(RowStore(tmp_path / "whole").read())
    assert all(row in rows for row in kept)  # not played again
    run_bench(toy_plan(seeds=3), RowStore(tmp_path / "killed"), progress=told.append)
    assert len(RowStore(tmp_path / "killed").read()) == 36


def test_the_clock_stops_it(tmp_path: Path) -> None:
    assert run_bench(toy_plan(), RowStore(tmp_path), minutes=0.0) == "the clock"
    assert RowStore(tmp_path).read() == []


def test_time_left_goes_by_how_long_each_arm_takes(tmp_path: Path) -> None:
    """An arm that copies others' episodes takes no time; one that takes three times as long is counted so."""
    kept = KeepBestArm("try_1", 1, ("",))
    plan = toy_plan(seeds=4, arms=(RuleArm("wait"), RuleArm("probe_and_keep"), kept))
    work = _Work(plan, RowStore(tmp_path))
    assert work.seconds_left() is None
    rows = [replace(ROW, seed=seed) for seed in range(4)]
    chunks = {arm.name: (arm, hosts) for arm, hosts in reversed(work.queue)}  # the first of each
    work.keep(chunks["wait"], Played(rows, None, seconds=8.0))
    assert work.seconds_left() == pytest.approx(2.0 * (8 + 12), abs=0.1)
    work.keep(chunks["probe_and_keep"], Played(rows, None, seconds=24.0))
    work.at_once = 2
    assert work.seconds_left() == pytest.approx((2.0 * 8 + 6.0 * 8) / 2, abs=0.1)


@pytest.mark.slow  # each process imports torch
def test_processes_play_the_same(tmp_path: Path) -> None:
    plan = toy_plan(seeds=2)
    run_bench(plan, RowStore(tmp_path / "one"))
    run_bench(plan, RowStore(tmp_path / "two"), workers=2)
    assert timeless(RowStore(tmp_path / "two").read()) == timeless(RowStore(tmp_path / "one").read())


def test_nothing_is_played_before_what_it_needs(tmp_path: Path) -> None:
    plan = toy_plan(seeds=2, arms=ARMS[:3], suite=bench_suite("toy").first(1))
    case = plan.suite.instances[0]
    work = _Work(plan, RowStore(tmp_path))
    work.queue.reverse()  # from_birth is the first now
    taken = [work.take() for _ in range(2)]
    assert [(chunk[0].name, chunk[1].instance) for chunk in taken if chunk] == [
        ("probe_and_keep", case),
        ("wait", case),
    ]
    assert work.take() is None
    for chunk in taken:
        assert chunk is not None
        work.add(play_chunk(*chunk))
    last = work.take()
    assert last is not None
    assert set(last[1].known) == {("wait", 0, case), ("probe_and_keep", 0, case)}


@pytest.mark.parametrize("error", [BrokenProcessPool("killed"), RuntimeError("cuDNN error: internal")])
def test_a_chunk_that_fails_twice_is_played_a_third_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    run_bench(toy_plan(seeds=2), RowStore(tmp_path / "whole"))
    attempts: Counter[tuple[str, str]] = Counter()

    def unlucky(arm: Arm, hosts: Hosts) -> list[BenchRow]:
        attempts[arm.name, hosts.instance] += 1
        if arm.name == "probe_and_keep" and attempts[arm.name, hosts.instance] < ATTEMPTS:
            raise error
        return play_chunk(arm, hosts)

    monkeypatch.setattr("esper.benchmark.runner.play_chunk", unlucky)
    assert run_bench(toy_plan(seeds=2), RowStore(tmp_path / "unlucky")) is None
    rows = RowStore(tmp_path / "unlucky").read()
    assert timeless(rows) == timeless(RowStore(tmp_path / "whole").read())


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (BrokenProcessPool("killed"), LOST_PROCESS),
        (RuntimeError("cuDNN error: internal"), "RuntimeError: cuDNN error: internal"),
    ],
)
def test_lost_episodes_are_reported_with_their_cause_and_the_others_are_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, cause: str
) -> None:
    plan = toy_plan(seeds=2)
    sick = plan.suite.instances[0]

    def lost(arm: Arm, hosts: Hosts) -> list[BenchRow]:
        if arm.name == "probe_and_keep" and hosts.instance == sick:
            raise error
        return play_chunk(arm, hosts)

    monkeypatch.setattr("esper.benchmark.runner.play_chunk", lost)
    stopped = run_bench(plan, RowStore(tmp_path))
    assert stopped == f"2 lost episodes, the first by probe_and_keep on {sick} ({cause})"
    played = {(row.arm, row.instance) for row in RowStore(tmp_path).read()}
    everything = {(arm.name, instance) for (_, _, instance), arm in plan.groups()}
    assert {arm for arm, instance in everything - played if instance == sick} == {
        "probe_and_keep",
        "from_birth",
    }
    monkeypatch.undo()
    assert run_bench(plan, RowStore(tmp_path)) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arms": ARMS[1:]}, "expected wait"),
        ({"arms": (ARMS[0], ARMS[0])}, "named twice"),
        ({"arms": (ARMS[0], ARMS[2], ARMS[1])}, "from_birth needs probe_and_keep before it"),
        ({"seeds": 0}, "seeds is 0"),
        ({"reference": "nobody"}, "no arm is named 'nobody'"),
        ({"treatments": ("nobody",)}, "no arm is named 'nobody'"),
    ],
)
def test_plans_that_cannot_work_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        toy_plan(**changes)


def test_a_run_is_no_folder_for_a_bench(tmp_path: Path) -> None:
    (tmp_path / EVENTS_FILE).touch()
    with (
        pytest.raises(RowsError, match=r"holds a run: choose another folder with --out"),
        only_bench(tmp_path),
    ):
        pass
    assert [path.name for path in tmp_path.iterdir()] == [EVENTS_FILE]


def test_rows_of_other_numerics_are_not_mixed(tmp_path: Path) -> None:
    """They are read as ever: the evidence that is shipped has none on record."""
    record = record_of(toy_plan(), {})
    assert record.numerics == NUMERICS
    for other, named in ((NUMERICS - 1, str(NUMERICS - 1)), (None, "not recorded")):
        folder = tmp_path / named
        folder.mkdir()
        merge_record(folder, replace(record, numerics=other))
        message = rf"other numerics of the engine \({named}; now {NUMERICS}\).* --out"
        with pytest.raises(BenchMismatch, match=message):
            merge_record(folder, record)
        assert read_record(folder).numerics == other


def test_a_folder_is_of_one_benchmark(tmp_path: Path) -> None:
    with pytest.raises(RowsError, match="holds no benchmark"):
        read_record(tmp_path)
    merge_record(tmp_path, record_of(toy_plan(), {"esper": "1"}))
    with pytest.raises(RowsError, match="has no rows of a benchmark"):
        read_bench(tmp_path)
    more = toy_plan(seeds=12, arms=(*ARMS, RuleArm("plateau")), treatments=("plateau",))
    record = merge_record(tmp_path, record_of(more, {"esper": "2"}))
    assert record == read_record(tmp_path)
    assert (record.seeds, record.treatments) == (12, ("probe_and_keep", "plateau"))
    assert list(record.arms) == ["wait", "probe_and_keep", "from_birth", "blind", "plateau"]
    assert [each["esper"] for each in record.provenance] == ["1", "2"]
    other = replace(toy_plan(), suite=BenchSuite("toy_shift", ("toy:draw=1", "toy:draw=2")))
    with pytest.raises(BenchMismatch, match="holds a benchmark of toy, not of toy_shift"):
        merge_record(tmp_path, record_of(other, {}))
    cases = bench_suite("toy").first(3).instances
    for schedule, fits in (("germinate a@0 t=0", True), ("germinate b@0 t=0", False)):
        arms = (ARMS[0], ScheduleArm("sbs", dict.fromkeys(cases, schedule)))
        plan = toy_plan(arms=arms, reference="wait", treatments=())
        if fits:
            merge_record(tmp_path, record_of(plan, {}))
            continue
        with pytest.raises(BenchMismatch, match="has rows of another sbs"):
            merge_record(tmp_path, record_of(plan, {}))
    (tmp_path / "bench.json").write_text("{}")
    with pytest.raises(RowsError, match=r"bench\.json: "):
        read_record(tmp_path)
