"""Where records go."""

from esper.nissa.sinks.jsonl import JsonlSink
from esper.nissa.sinks.sink import Sink
from esper.nissa.sinks.tensorboard import TensorBoardSink
from esper.nissa.sinks.wandb import WandbSink

__all__ = ["JsonlSink", "Sink", "TensorBoardSink", "WandbSink"]
