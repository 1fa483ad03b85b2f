"""The benchmark: arms meet the same hosts in one environment; their rows make a table.

suites       the instances and hosts that are scored
arms         what competes; `matching` has the controls of equal size, `controllers` the learned ones
outcomes     results of open-loop schedules, and the tabular benchmark over them
planning     from a request to a plan
playing      one arm on the hosts of one instance; `metering` logs what happens to them
runner       a whole plan, over worker processes
rows         one row per episode, and their files
record       the folder of a benchmark, and the result read back from it
table        from rows to estimates, comparisons and the verdict; `esper.statistics` has the bootstrap
"""

from esper.benchmark.arms import BlindArm, LearnedArm, MatchedArm, RuleArm, ScheduleArm
from esper.benchmark.controllers import ControllerError, find_controller
from esper.benchmark.outcomes import Outcomes, TabularBench
from esper.benchmark.planning import BenchPlan, BenchRequest, plan_bench
from esper.benchmark.record import BenchMismatch, BenchRecord, BenchResult, read_bench, read_record
from esper.benchmark.rows import BenchRow, RowsError, RowStore, SeedRow, require_rows
from esper.benchmark.runner import BenchProgress, run_bench
from esper.benchmark.suites import BenchSuite, PlanError, bench_suite, subsets
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
