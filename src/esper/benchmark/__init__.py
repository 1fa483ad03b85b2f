"""The benchmark: arms meet the same hosts in one environment; their rows make a table.

suites       the instances and hosts that are scored
arms         what competes, also ablated; `matching` has the controls of equal size, `controllers` the learned ones
rivals       what else a user would try; `stream_rivals` on streams, where `stream_rules` decide
outcomes     results of open-loop schedules, and the tabular benchmark over them
planning     from a request to a plan
playing      one arm on the hosts of one instance, and what happens to them
runner       a whole plan, over worker processes
rows         one row per episode, and their files
bench        `esper.bench`, the folder it plays into, and the result read back from it
table        from rows to estimates, comparisons and the verdict; `esper.statistics` has the bootstrap
"""

from esper.benchmark.bench import BenchResult as BenchResult
from esper.benchmark.bench import read_bench as read_bench
from esper.benchmark.planning import BenchRequest as BenchRequest
from esper.benchmark.planning import plan_bench as plan_bench
from esper.benchmark.rows import BenchRow as BenchRow
from esper.benchmark.rows import RowsError as RowsError
from esper.benchmark.rows import RowStore as RowStore
from esper.benchmark.rows import SeedLife as SeedLife
from esper.benchmark.rows import SeedRow as SeedRow
from esper.benchmark.runner import BenchProgress as BenchProgress
from esper.benchmark.runner import run_bench as run_bench
from esper.benchmark.suites import PlanError as PlanError
from esper.benchmark.table import BenchTable as BenchTable
from esper.benchmark.verdict import gate as gate
from esper.benchmark.verdict import verdict as verdict
