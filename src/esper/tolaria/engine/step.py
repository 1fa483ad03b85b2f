"""One training step of one host: forward, backward, clip host and seeds apart, update, tally.

And what hosts are trained to do, and how well they do it: classes or measured quantities, by the dtype of targets.

    classes     loss is the cross-entropy, the score is accuracy
    quantities  loss is the mean squared error, the score is the share of their variance that is explained,
                max(0, 1 - mean squared error / variance)

Always predicting the mean of the quantities scores 0. What is worse than that, or not a number, scores 0 too: scores
are 0..1 in both, and rent weighs as much.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from esper.kasmina.gradients import EXPLODING_NORM, VANISHING_NORM
from esper.leyline import Stage
from esper.tolaria.engine.host import EpochPlan, TrainedHost, shown

LOSS, SCORE, HOST_NORM, FIRST_SLOT = 0, 1, 2, 3
"""Columns of a tally: sums over the epoch's steps; then for each slot its seed's norm and health."""


def tally_width(slots: int) -> int:
    """Columns of a tally of hosts with this many slots."""
    return FIRST_SLOT + 2 * slots


class TrainingStep:
    """The step of one host while its topology stays as it is.

    Everything it measures is added to `tally`, a row on the device: nothing waits for it. Sums carry NaN and Inf,
    so the row also shows whether every loss and every norm was finite.
    """

    def __init__(self, host: TrainedHost, tally: Tensor) -> None:
        self.host, self.tally = host, tally
        self.topology = host.topology
        fossils: list[nn.Parameter] = []
        seeds: list[list[nn.Parameter]] = []
        columns, trained = [LOSS, SCORE, HOST_NORM], []
        health_columns: list[int] = []
        for index, slot in enumerate(host.slots):
            if slot.seed is None or slot.life.fading:
                continue
            if slot.stage is Stage.FOSSILIZED:
                fossils += slot.seed.parameters()
                continue
            trained.append(index)
            seeds.append(list(slot.seed.parameters()))
            columns.append(FIRST_SLOT + 2 * index)
            health_columns.append(FIRST_SLOT + 2 * index + 1)
        self._groups = [[*host.model.bare_parameters(), *fossils], *seeds]
        self._limits = [host.task.clip_host, *[host.task.clip_seeds] * len(seeds)]
        self._columns = torch.tensor(columns + health_columns, device=host.device)
        self._guard = SeedGuard(host.non_finite, trained, seeds) if seeds else None

    def __call__(self, indices: Tensor, views: Tensor | None = None, rate: Tensor | None = None) -> None:
        """Train on the samples `indices` (batch,).

        views  (batch,) how each is shown, of a task with augmentation
        rate   the learning rate that a schedule gives; None: the same one as before
        """
        host = self.host
        if rate is not None:
            host.set_rate(rate)
        inputs, targets = self._inputs(indices, views), host.data.targets[indices]
        host.optimizer.zero_grad(set_to_none=True)
        loss, outputs = forward(host, inputs, targets)
        loss.backward()
        with torch.no_grad():  # inference tensors could not be trained on any more
            measured = clip_groups_(self._groups, self._limits)
            if self._guard is not None:
                self._guard(measured[1 : len(self._groups)])
            if host.before_update is not None:
                host.before_update()
            host.optimizer.step()
            score = mean_score(outputs, targets, loss, host.data.variance)
            self.tally.index_add_(0, self._columns, torch.cat((torch.stack((loss, score)), measured)))

    def _inputs(self, indices: Tensor, views: Tensor | None) -> Tensor:
        data, augmentation = self.host.data.inputs, self.host.task.augmentation
        if views is None or augmentation is None:
            return data[indices]
        return shown(data, indices, views, augmentation)


def forward(host: TrainedHost, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The mean loss, and the outputs: logits (sample, ..., class), or quantities (sample, quantity)."""
    with autocast(host):
        outputs = host.model(inputs)
        assert isinstance(outputs, Tensor)
        return mean_loss(outputs, targets), outputs


class SeedGuard:
    """No update from a step in which a seed's output or gradient was not finite.

    On the CPU its gradients become None, which skips the update exactly. On other devices asking would stall the
    device, so they become zero there, for all seeds at once, and only momentum may still move the seed.
    """

    def __init__(
        self, records: Tensor, slots: Sequence[int], seeds: Sequence[Sequence[nn.Parameter]]
    ) -> None:
        self._records, self._seeds = records, seeds
        self._slots = torch.tensor(slots, device=records.device)
        self._owner: Tensor | None = None

    def __call__(self, norms: Tensor) -> None:
        """`norms` (seed,) are those of the seeds' gradients in this step."""
        broken = (norms - norms != 0.0) | self._records[:, 0].index_select(0, self._slots)  # (seed,)
        if broken.device.type == "cpu":
            if not broken.any():
                return
            for seed, bad in zip(self._seeds, broken.tolist(), strict=True):
                for parameter in seed:
                    parameter.grad = None if bad else parameter.grad
        else:
            self.zero(broken)
        self._records[:, 0].index_copy_(0, self._slots, broken)
        self._records[:, 1] |= self._records[:, 0]  # of all slots: a fading seed is reported, too
        self._records[:, 0] = False

    def zero(self, broken: Tensor) -> None:
        """The gradients of the seeds that are `broken` (seed,), without asking which these are."""
        held = [[p.grad for p in seed if p.grad is not None] for seed in self._seeds]
        gradients = [gradient for seed in held for gradient in seed]
        if self._owner is None:  # a step's first run is never captured, and has the gradients of every other
            sizes = torch.tensor([sum(gradient.numel() for gradient in seed) for seed in held])
            self._owner = (
                torch.arange(len(held)).repeat_interleave(sizes).to(broken.device)
            )  # (element,) -> seed
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        flat.masked_fill_(broken.index_select(0, self._owner), 0.0)
        parts = flat.split([gradient.numel() for gradient in gradients])
        torch._foreach_copy_(gradients, [p.view(g.shape) for p, g in zip(parts, gradients, strict=True)])


def autocast(host: TrainedHost) -> AbstractContextManager[object]:
    """CPUs compute in float32 whatever the task says: few are faster in bfloat16, and some claim it and crash."""
    if host.task.precision == "bf16" and host.device.type != "cpu":
        return torch.autocast(host.device.type, dtype=torch.bfloat16)
    return nullcontext()


def clip_groups_(groups: Sequence[Sequence[Tensor]], limits: Sequence[float]) -> Tensor:
    """Clip the gradients of each group to its own norm limit, in place.

    Returns the groups' norms before clipping, then the health of all groups but the first (the host's): the share of
    their gradient tensors that are finite and neither vanish nor explode. One multi-tensor norm for everything.
    """
    gradients = [[p.grad for p in group if p.grad is not None] for group in groups]
    sizes = [len(group) for group in gradients]
    norms = torch.stack(torch._foreach_norm([gradient for group in gradients for gradient in group])).float()
    parts = norms.split(sizes)
    totals = [torch.linalg.vector_norm(part) for part in parts]
    for group, total, limit in zip(gradients, totals, limits, strict=True):
        if total.device.type == "cpu":
            if total > limit:
                torch._foreach_mul_(group, limit / (total + 1e-6))
        else:  # asking would stall the device
            torch._foreach_mul_(group, (limit / (total + 1e-6)).clamp(max=1.0))
    seeds = norms[sizes[0] :]
    healthy = ((seeds >= VANISHING_NORM) & (seeds <= EXPLODING_NORM)).float() if len(groups) > 1 else seeds
    return torch.stack([*totals, *(part.mean() for part in healthy.split(sizes[1:]))])


# CUDA: a host's training step as a captured graph, replayed on one of a pool of streams.


STREAMS = 16


@cache
def streams_of(device: torch.device) -> tuple[torch.cuda.Stream, ...]:
    """The streams of a device, the same for all populations of a process.

    cuBLAS keeps a workspace for every stream it was ever used on (65 MB with that of the backward pass): streams of
    their own would let each population leave that much behind.
    """
    return tuple(torch.cuda.Stream(device) for _ in range(STREAMS))


class StreamPool:
    """Streams that hosts share, each with its own graph memory.

    Graphs that replay at the same time may not share memory; those of one stream replay one after another and do.
    """

    def __init__(self, device: torch.device, size: int) -> None:
        self.device = device
        self.streams = streams_of(device)[:size]
        self.memory = [torch.cuda.graph_pool_handle() for _ in self.streams]
        self._anchors = [self._anchor(index) for index in range(len(self.streams))]

    def _anchor(self, index: int) -> torch.cuda.CUDAGraph:
        """A graph that is never replayed: a pool whose last graph is gone cannot be captured into again."""
        graph, place = torch.cuda.CUDAGraph(), torch.zeros(1, device=self.device)
        with torch.cuda.stream(self.streams[index]):
            graph.capture_begin(pool=self.memory[index], capture_error_mode="thread_local")
            place.add_(1)
            graph.capture_end()
        return graph

    def index_of(self, host_idx: int) -> int:
        """The stream that a host uses."""
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

    The plan of an epoch lies on the device, and a counter there says which of its minibatches is next.
    """

    def __init__(
        self,
        step: TrainingStep,
        pool: StreamPool,
        host_idx: int,
        plan: EpochPlan,
    ) -> None:
        self.step, self.plan = step, plan.clone()  # its own: uploaded plans are parts of one block
        self.cursor = torch.zeros(1, dtype=torch.int64, device=pool.device)
        self.topology = step.topology
        place = pool.index_of(host_idx)
        self._stream, self._memory = pool.streams[place], pool.memory[place]
        self._graph: torch.cuda.CUDAGraph | None = None

    def begin_epoch(self, plan: EpochPlan) -> None:
        """Train on this plan next, which has as many steps as the one before."""
        places = (self.plan.order, self.plan.views, self.plan.rates)
        for place, column in zip(places, (plan.order, plan.views, plan.rates), strict=True):
            if place is not None and column is not None:
                place.copy_(column)
        self.cursor.zero_()

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
        """Whether the next call replays a graph."""
        return self._graph is not None

    def release(self) -> None:
        """Give the graph's memory back to its stream's pool."""
        if self._graph is not None:
            self._graph.reset()
            self._graph = None

    def _advance(self) -> None:
        columns = (self.plan.order, self.plan.views, self.plan.rates)
        indices, views, rate = (
            None if column is None else column.index_select(0, self.cursor).squeeze(0) for column in columns
        )
        assert indices is not None
        self.step(indices, views, rate)
        self.cursor.add_(1)


def upload(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Copy tensors of one kind to the device in one transfer, without waiting for it."""
    if not tensors:
        return []
    flat = torch.cat([tensor.flatten() for tensor in tensors]).pin_memory().to(device, non_blocking=True)
    return [
        part.view(tensor.shape)
        for part, tensor in zip(flat.split([tensor.numel() for tensor in tensors]), tensors, strict=True)
    ]


def upload_plans(plans: Sequence[EpochPlan], device: torch.device) -> list[EpochPlan]:
    """The plans on the device, in one transfer for each of their parts."""
    orders = upload([plan.order for plan in plans], device)
    views = iter(upload([plan.views for plan in plans if plan.views is not None], device))
    rates = iter(upload([plan.rates for plan in plans if plan.rates is not None], device))
    return [
        EpochPlan(
            order,
            None if plan.views is None else next(views),
            None if plan.rates is None else next(rates),
        )
        for plan, order in zip(plans, orders, strict=True)
    ]


# Losses and scores


def mean_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """The loss that is trained on.

    outputs  (sample, ..., class) logits, or (sample, quantity)
    """
    if targets.is_floating_point():
        return F.mse_loss(outputs.float(), targets)
    return F.cross_entropy(outputs.flatten(0, -2).float(), targets.flatten())


def mean_score(outputs: Tensor, targets: Tensor, loss: Tensor, variance: float) -> Tensor:
    """Accuracy; of quantities the explained share before it is cut at 0, so that its mean is that of the mean loss.

    loss      what `mean_loss` returned
    variance  of the quantities; not used for classes
    """
    if targets.is_floating_point():
        return 1.0 - loss / variance
    return (outputs.argmax(-1) == targets).float().mean()


def loss_and_hits(outputs: Tensor, targets: Tensor) -> Tensor:
    """(copy, sample, 2): the loss of each sample, and its share of right classes; of quantities no hits are counted.

    outputs  (copy, sample, position, class) logits, or (copy, sample, 1, quantity); float32
    targets  (sample, ...)
    """
    copies, samples = outputs.shape[:2]
    if targets.is_floating_point():
        losses = (outputs.squeeze(2) - targets).square().mean(2)
        return torch.stack((losses, torch.zeros_like(losses)), dim=2)
    wanted = targets.view(1, samples, -1).expand(copies, -1, -1)
    losses = F.cross_entropy(outputs.flatten(0, 2), wanted.flatten(), reduction="none").view(wanted.shape)
    correct = (outputs.argmax(-1) == wanted).float()
    return torch.stack((losses.mean(2), correct.mean(2)), dim=2)


def explained(loss: Tensor, variance: float) -> Tensor:
    """The score of quantities whose mean squared error is `loss`; 0 where they do not vary."""
    if not variance:
        return torch.zeros_like(loss)
    return (1.0 - loss / variance).nan_to_num(nan=0.0).clamp(min=0.0)
