"""Nissa: recording. The run directory, typed events on disk, and the sinks they go to."""

from esper.nissa.event_file import KINDS as KINDS
from esper.nissa.event_file import ReadingNotes as ReadingNotes
from esper.nissa.event_file import Record as Record
from esper.nissa.event_file import RunListing as RunListing
from esper.nissa.event_file import describe_run as describe_run
from esper.nissa.event_file import list_runs as list_runs
from esper.nissa.event_file import read_events as read_events
from esper.nissa.event_file import read_run as read_run
from esper.nissa.recorder import NullSink as NullSink
from esper.nissa.recorder import Recorder as Recorder
from esper.nissa.recorder import SinkFailed as SinkFailed
from esper.nissa.recorder import open_recorder as open_recorder
from esper.nissa.run_directory import Checkpoints as Checkpoints
from esper.nissa.run_directory import Provenance as Provenance
from esper.nissa.run_directory import RunDirectory as RunDirectory
from esper.nissa.run_directory import RunError as RunError
from esper.nissa.run_directory import collect_provenance as collect_provenance
from esper.nissa.run_directory import is_being_written as is_being_written
from esper.nissa.run_directory import read_config as read_config
from esper.nissa.run_directory import read_provenance as read_provenance
from esper.nissa.run_directory import require_run_name as require_run_name
