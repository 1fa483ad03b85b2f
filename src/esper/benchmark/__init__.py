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

from esper.benchmark.planning import BenchRequest, plan_bench
from esper.benchmark.record import BenchResult, read_bench
from esper.benchmark.rows import BenchRow, RowsError, RowStore, SeedRow
from esper.benchmark.runner import BenchProgress, run_bench
from esper.benchmark.suites import PlanError
from esper.benchmark.table import BenchTable, gate, verdict

__all__ = [
    "BenchProgress",
    "BenchRequest",
    "BenchResult",
    "BenchRow",
    "BenchTable",
    "PlanError",
    "RowStore",
    "RowsError",
    "SeedRow",
    "gate",
    "plan_bench",
    "read_bench",
    "run_bench",
    "verdict",
]
