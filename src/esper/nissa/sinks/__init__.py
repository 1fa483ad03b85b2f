"""Where records go. TensorBoard's sink is imported where it is wanted: readers should not wait for it."""

from esper.nissa.sinks.jsonl import JsonlSink
from esper.nissa.sinks.sink import Sink
from esper.nissa.sinks.wandb import WandbSink

__all__ = ["JsonlSink", "Sink", "WandbSink"]
