"""The benchmark: arms through one environment on the same hosts, rows of episodes, a table made from them alone."""

from esper.simic.bench.arms import BlindArm, LearnedArm, MatchedArm, RuleArm, ScheduleArm
from esper.simic.bench.comparison import BenchTable, bench_table
from esper.simic.bench.controllers import ControllerError, find_controller
from esper.simic.bench.outcomes import Outcomes
from esper.simic.bench.planning import BenchRequest, plan_bench
from esper.simic.bench.reading import BenchResult, read_bench
from esper.simic.bench.record import BenchMismatch, BenchRecord, read_record
from esper.simic.bench.rows import BenchRow, RowsError, RowStore, SeedRow, require_rows
from esper.simic.bench.runner import BenchPlan, BenchProgress, PlanError, run_bench
from esper.simic.bench.suites import BenchSuite, bench_suite, subsets
from esper.simic.bench.tabular import TabularBench
from esper.simic.bench.verdict import gate, verdict

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
