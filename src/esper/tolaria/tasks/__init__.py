"""Tasks: what a host is trained on and how. Importing this registers the rows that Esper ships."""

from esper.tolaria.tasks import (
    adapt,
    adapt_stream,
    backbone,
    bits,
    drawn,
    files,
    images,
    regression,
    series,
    stream,
)
from esper.tolaria.tasks.instance import Instance as Instance
from esper.tolaria.tasks.instance import data_changes as data_changes
from esper.tolaria.tasks.suites import Suite as Suite
from esper.tolaria.tasks.suites import suite as suite
from esper.tolaria.tasks.suites import suite_names as suite_names
from esper.tolaria.tasks.task import Augmentation as Augmentation
from esper.tolaria.tasks.task import OptimiserSpec as OptimiserSpec
from esper.tolaria.tasks.task import Parameter as Parameter
from esper.tolaria.tasks.task import ParameterError as ParameterError
from esper.tolaria.tasks.task import ParameterSpec as ParameterSpec
from esper.tolaria.tasks.task import Task as Task
from esper.tolaria.tasks.task import all_tasks as all_tasks
from esper.tolaria.tasks.task import forget as forget
from esper.tolaria.tasks.task import register as register
from esper.tolaria.tasks.task import task as task

_HOMES = (series, stream, bits, images, files, regression, drawn, adapt, adapt_stream, backbone)
for _row in (row for home in _HOMES for row in home.ROWS):
    register(_row)
