"""Tasks: what a host is trained on and how. Importing this registers the rows that Esper ships."""

from esper.tolaria.tasks import series as _series  # noqa: F401
from esper.tolaria.tasks.instance import Instance
from esper.tolaria.tasks.parameters import Parameter, ParameterError, ParameterSpec
from esper.tolaria.tasks.task import OptimiserSpec, Task, all_tasks, forget, register, task

__all__ = [
    "Instance",
    "OptimiserSpec",
    "Parameter",
    "ParameterError",
    "ParameterSpec",
    "Task",
    "all_tasks",
    "forget",
    "register",
    "task",
]
