"""Nissa: recording. The run directory, typed events on disk, and the sinks they go to."""

from esper.nissa.provenance import Provenance, collect_provenance
from esper.nissa.reading import ReadingNotes, RunListing, describe_run, list_runs, read_events, read_run
from esper.nissa.recorder import NullSink, Recorder, SinkFailed, open_recorder
from esper.nissa.run_directory import (
    Checkpoints,
    RunDirectory,
    RunError,
    is_being_written,
    read_config,
    read_provenance,
    require_run_name,
)
from esper.nissa.wire import KINDS, Record

__all__ = [
    "KINDS",
    "Checkpoints",
    "NullSink",
    "Provenance",
    "ReadingNotes",
    "Record",
    "Recorder",
    "RunDirectory",
    "RunError",
    "RunListing",
    "SinkFailed",
    "collect_provenance",
    "describe_run",
    "is_being_written",
    "list_runs",
    "open_recorder",
    "read_config",
    "read_events",
    "read_provenance",
    "read_run",
    "require_run_name",
]
