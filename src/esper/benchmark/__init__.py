"""The benchmark: arms through one environment on the same hosts, rows of episodes, a table made from them alone."""

from esper.benchmark.arms import BlindArm, LearnedArm, MatchedArm, RuleArm, ScheduleArm
from esper.benchmark.controllers import ControllerError, find_controller
from esper.benchmark.outcomes import Outcomes, TabularBench
from esper.benchmark.planning import BenchRequest, plan_bench
from esper.benchmark.record import BenchMismatch, BenchRecord, BenchResult, read_bench, read_record
from esper.benchmark.rows import BenchRow, RowsError, RowStore, SeedRow, require_rows
from esper.benchmark.runner import BenchPlan, BenchProgress, PlanError, run_bench
from esper.benchmark.suites import BenchSuite, bench_suite, subsets
from esper.benchmark.table import BenchTable, bench_table, gate, verdict

__all__ = [
    "BenchMismatch",
    "BenchPlan",
    "BenchProgress",
    "BenchRecord",
    "BenchRequest",
    "BenchResult",
    "BenchRow",
    "BenchSuite",
    "BenchTable",
    "BlindArm",
    "ControllerError",
    "LearnedArm",
    "MatchedArm",
    "Outcomes",
    "PlanError",
    "RowStore",
    "RowsError",
    "RuleArm",
    "ScheduleArm",
    "SeedRow",
    "TabularBench",
    "bench_suite",
    "bench_table",
    "find_controller",
    "gate",
    "plan_bench",
    "read_bench",
    "read_record",
    "require_rows",
    "run_bench",
    "subsets",
    "verdict",
]
