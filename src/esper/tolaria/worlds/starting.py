"""How worker processes are started: copies of one that has imported torch, so that each starts in milliseconds."""

import multiprocessing
import os
import sys
from collections.abc import Mapping
from multiprocessing.context import ForkServerContext, SpawnContext

PRELOADED = ["esper.tolaria.worlds.worker", "esper.tolaria.worlds.engine", "torch._dynamo"]
"""Modules that a worker finds imported; the first step of any optimiser imports the last, which takes a second.

Importing them computes nothing and touches no GPU, so that copying is safe.
"""


def worker_context() -> ForkServerContext | SpawnContext:
    """The start method of workers.

    Copying this process is not safe, as it has threads; on Linux another is kept for it, which imports and does
    nothing else. Elsewhere every worker imports for itself. Copies have the environment variables of the first
    start: send those of now with each worker, for `take_environment`.
    """
    if sys.platform != "linux":  # system libraries of macOS do not survive a copy
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


def take_environment(variables: Mapping[str, str]) -> None:
    """Make the environment variables of this process these."""
    os.environ.clear()
    os.environ.update(variables)
