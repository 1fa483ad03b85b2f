"""What was done to each host, so that it can be made again elsewhere."""

from collections.abc import Iterable

from esper.leyline import Beginning, HostState, HostStep
from esper.tolaria.worlds.worker import HostRecord, HostView


class Journal:
    """How each host began, or a state it was saved in, and every step since."""

    def __init__(self) -> None:
        self._origins: dict[int, Beginning | HostState] = {}
        self._steps: dict[int, list[HostStep]] = {}

    def __contains__(self, host_idx: int) -> bool:
        return host_idx in self._origins

    def begin(self, host_idx: int, origin: Beginning | HostState) -> None:
        """Forget what was done to a host before: it is made from this."""
        self._origins[host_idx], self._steps[host_idx] = origin, []

    def add(self, step: HostStep) -> None:
        """One more step of a host."""
        self._steps[step.host_idx].append(step)

    def forget(self, host_idxs: Iterable[int]) -> None:
        """Hosts that cannot, or need not, be made again."""
        for host_idx in host_idxs:
            self._origins.pop(host_idx, None)
            self._steps.pop(host_idx, None)

    def steps(self, host_idx: int) -> int:
        """Steps that a replay of this host would take; of one that cannot be replayed, 0."""
        return len(self._steps.get(host_idx, ()))

    def record(self, host_idx: int, last: HostView | None) -> HostRecord:
        """All that is needed to make a host again, and what it must then be; None where that may differ."""
        return HostRecord(self._origins[host_idx], tuple(self._steps[host_idx]), last)
