"""Which node of a cluster does what: its workers, how much they train, and what was lost there."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from esper.karn.drawing import number, share, thousands
from esper.leyline import RoundFinished


@dataclass(slots=True)
class NodeWork:
    """What the workers of one node did in some rounds."""

    node: str
    workers: set[str] = field(default_factory=set)
    """Names of the workers that were there."""
    epochs: int = 0
    """Epochs that they trained hosts for."""
    busy_seconds: float = 0.0
    """Seconds in which they did, added up over workers."""
    seconds: float = 0.0
    """Time of the rounds, by the clock."""
    lost: int = 0
    """Hosts lost with a worker there."""
    replayed: int = 0
    """Epochs of hosts repeated there after a loss."""

    @property
    def epochs_per_second(self) -> float | None:
        """Env-epochs per second by the clock; None if no time passed."""
        return self.epochs / self.seconds if self.seconds > 0.0 else None


NODE_COLUMNS: dict[str, Callable[[NodeWork], str]] = {
    "node": lambda row: row.node,
    "workers": lambda row: ", ".join(sorted(row.workers)),
    "env-epochs": lambda row: thousands(row.epochs),
    "env-epochs/s": lambda row: number(row.epochs_per_second, 1),
    "at work": lambda row: share(row.busy_seconds, row.seconds * len(row.workers)),
    "hosts lost": lambda row: thousands(row.lost),
    "epochs replayed": lambda row: thousands(row.replayed),
}
"""Title of a column -> what it shows of a node; the first two are names."""


def work_by_node(rounds: Sequence[RoundFinished]) -> list[NodeWork]:
    """One row for each node that had a worker in these rounds, in the order of names; none without a cluster."""
    clustered = [row for row in rounds if row.epochs_by_worker is not None]
    found: dict[str, NodeWork] = {}
    for row in clustered:
        for worker, epochs in (row.epochs_by_worker or {}).items():
            name, _, node = worker.partition(" on ")
            work = found.setdefault(node, NodeWork(node))
            work.workers.add(name)
            work.epochs += epochs
            work.busy_seconds += _seconds_of(worker, row.seconds_by_part or {})
            work.lost += (row.lost_by_worker or {}).get(worker, 0)
            work.replayed += (row.replayed_by_worker or {}).get(worker, 0)
    for work in found.values():
        work.seconds = sum(row.seconds for row in clustered)
    return sorted(found.values(), key=lambda work: work.node)


def _seconds_of(worker: str, parts: Mapping[str, float]) -> float:
    """Seconds that a worker was at work, wherever in the time tree it is."""
    return sum(seconds for path, seconds in parts.items() if path.endswith(f"/{worker}"))


def cluster_line(row: RoundFinished) -> str:
    """A round on a cluster in a few words: nodes, workers, and what was lost; empty without a cluster."""
    nodes = work_by_node([row])
    if not nodes:
        return ""
    counts = Counter(lost=sum(node.lost for node in nodes), replayed=sum(node.replayed for node in nodes))
    parts = [f"nodes {len(nodes)}", f"workers {sum(len(node.workers) for node in nodes)}"]
    return "  ".join([*parts, *(f"{name} {count}" for name, count in counts.items() if count)])
