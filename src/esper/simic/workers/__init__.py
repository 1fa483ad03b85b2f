"""Workers: a world split over processes."""

from esper.simic.workers.link import WorkerError, WorkerHung
from esper.simic.workers.process_world import ProcessWorld

__all__ = ["ProcessWorld", "WorkerError", "WorkerHung"]
