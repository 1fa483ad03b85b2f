"""Worlds that worker processes make by name: a real engine of milliseconds, and some with troubles of their own."""

import os
import signal
import time
from collections.abc import Sequence

from esper.leyline import HostSinks, HostsLost, HostStep
from esper.tolaria.tasks import Instance, all_tasks, instance, register
from esper.tolaria.worlds.engine import EngineWorld
from esper.tolaria.worlds.toy.host import ToyWorld
from tiny_tasks import tiny_task


def tiny_engine(num_hosts: int, events: HostSinks | None = None) -> EngineWorld:
    """Hosts of the task `tiny`."""
    if "tiny" not in {row.name for row in all_tasks()}:
        register(tiny_task())
    return EngineWorld(num_hosts, events=events)


class GivenUp(ToyWorld):
    """Gives its host 0 up in every epoch, after all of them had it."""

    __slots__ = ()

    def step_many(self, steps: Sequence[HostStep]) -> None:
        super().step_many(steps)
        if any(step.host_idx == 0 for step in steps):
            raise HostsLost([0], "restored in vain")


class Deadly(ToyWorld):
    """A step of a host with the rng seed 13 kills the process."""

    def step_many(self, steps: Sequence[HostStep]) -> None:
        if any(self.host(step.host_idx).seed == 13 for step in steps):
            os.kill(os.getpid(), signal.SIGKILL)
        super().step_many(steps)


class Slow(ToyWorld):
    """A step of a host with the rng seed 13 takes a minute."""

    def step_many(self, steps: Sequence[HostStep]) -> None:
        if any(self.host(step.host_idx).seed == 13 for step in steps):
            time.sleep(60.0)
        super().step_many(steps)


def reads_shared_data(case: str) -> bool:
    """Whether this process has the data of a case from the object store of its node."""
    return Instance.parse(case).source() in instance._GIVEN


def impossible(num_hosts: int) -> ToyWorld:
    """A world that cannot be made."""
    raise ValueError(f"no world of {num_hosts} hosts")


def doubled(number: int) -> int:
    return 2 * number


def refused(number: int) -> int:
    raise ValueError(f"{number} is too much")


def unsendable(number: int) -> object:
    """Something that no pickle can hold."""
    return lambda: number


def fatal_once(path: str, number: int) -> int:
    """Kills its process the first time it is called."""
    if not os.path.exists(path):
        with open(path, "w"):
            os.kill(os.getpid(), signal.SIGKILL)
    return number


def where_it_runs(variable: str) -> tuple[int, str | None]:
    """The parent of the process, and one of its environment variables."""
    return os.getppid(), os.environ.get(variable)
