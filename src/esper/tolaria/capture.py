"""CUDA: a host's training step as a captured graph, replayed on one of a pool of streams."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from esper.tolaria.step import TrainingStep


class StreamPool:
    """Streams that hosts share, each with its own graph memory.

    Graphs that replay at the same time may not share memory; those of one stream replay one after another and do.
    """

    def __init__(self, device: torch.device, size: int) -> None:
        self.device = device
        self.streams = [torch.cuda.Stream(device) for _ in range(size)]
        self.memory = [torch.cuda.graph_pool_handle() for _ in range(size)]
        self._anchors = [self._anchor(index) for index in range(size)]

    def _anchor(self, index: int) -> torch.cuda.CUDAGraph:
        """A graph that is never replayed: a pool whose last graph is gone cannot be captured into again."""
        graph, place = torch.cuda.CUDAGraph(), torch.zeros(1, device=self.device)
        with torch.cuda.stream(self.streams[index]):
            graph.capture_begin(pool=self.memory[index], capture_error_mode="thread_local")
            place.add_(1)
            graph.capture_end()
        return graph

    def index_of(self, host_idx: int) -> int:
        return host_idx % len(self.streams)

    @contextmanager
    def fork(self) -> Iterator[None]:
        """Work on the streams inside comes after everything before, and before everything after."""
        current = torch.cuda.current_stream(self.device)
        for stream in self.streams:
            stream.wait_stream(current)
        try:
            yield
        finally:
            for stream in self.streams:
                current.wait_stream(stream)


class CapturedStep:
    """A `TrainingStep` that is run once for real and then captured; afterwards a step is one launch.

    The minibatches of an epoch lie in `order` (step, batch), and a counter on the device says which is next.
    """

    def __init__(
        self, step: TrainingStep, pool: StreamPool, host_idx: int, order: Tensor, cursor: Tensor
    ) -> None:
        self.step, self.order, self.cursor = step, order, cursor
        self.topology = step.topology
        place = pool.index_of(host_idx)
        self._stream, self._memory = pool.streams[place], pool.memory[place]
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        """The next minibatch. The first call trains eagerly, which also gives the optimiser its state."""
        with torch.cuda.stream(self._stream):
            if self._graph is not None:
                self._graph.replay()
                return
            self._advance()
            graph = torch.cuda.CUDAGraph()
            # not `torch.cuda.graph`, which stops the whole device and empties the allocator's cache first
            graph.capture_begin(pool=self._memory, capture_error_mode="thread_local")
            try:
                self._advance()
            finally:
                graph.capture_end()
        self._graph = graph

    @property
    def is_captured(self) -> bool:
        return self._graph is not None

    def release(self) -> None:
        """Give the graph's memory back to its stream's pool."""
        if self._graph is not None:
            self._graph.reset()
            self._graph = None

    def _advance(self) -> None:
        self.step(self.order.index_select(0, self.cursor).squeeze(0))
        self.cursor.add_(1)


def upload(orders: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Index tensors to the device in one copy that nobody waits for."""
    flat = torch.cat([order.flatten() for order in orders]).pin_memory().to(device, non_blocking=True)
    return [
        part.view(order.shape)
        for part, order in zip(flat.split([order.numel() for order in orders]), orders, strict=True)
    ]
