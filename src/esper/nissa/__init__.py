"""Nissa: recording. The run directory, typed events on disk, and the sinks they go to."""

from esper.nissa.checkpoints import Checkpoints
from esper.nissa.errors import RunError
from esper.nissa.listing import RunListing, describe_run, list_runs
from esper.nissa.lock import is_being_written
from esper.nissa.provenance import Provenance, collect_provenance
from esper.nissa.reading import ReadingNotes, read_events, read_run
from esper.nissa.recorder import NullSink, Recorder, SinkFailed, open_recorder
from esper.nissa.records import KINDS, Record
from esper.nissa.run_directory import RunDirectory, read_config, read_provenance, require_run_name

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
