"""Tasks: what a host is trained on and how. Importing this registers the rows that Esper ships."""

from esper.tolaria.tasks import files, images, series, shift
from esper.tolaria.tasks.instance import Instance
from esper.tolaria.tasks.parameters import Parameter, ParameterError, ParameterSpec
from esper.tolaria.tasks.suites import Suite, suite, suite_names
from esper.tolaria.tasks.task import OptimiserSpec, Task, all_tasks, forget, register, task

for _row in (*series.ROWS, *shift.ROWS, *images.ROWS, *files.ROWS):
    register(_row)

__all__ = [
    "Instance",
    "OptimiserSpec",
    "Parameter",
    "ParameterError",
    "ParameterSpec",
    "Suite",
    "Task",
    "all_tasks",
    "forget",
    "register",
    "suite",
    "suite_names",
    "task",
]
