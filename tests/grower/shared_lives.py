"""A life of growth in one process, or in several that share each batch, and what can happen to one of them."""

import importlib
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Literal

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import esper
from esper.kasmina.describing import describe
from esper.kasmina.replicas import ReplicaError, whole
from esper.leyline.errors import EsperError
from grower.loops import BATCH, SAMPLES, data, net

Kind = Literal["alone", "ddp", "fsdp"]
EVERYTHING = (
    "germinate mlp@0 tempo=3 t=1; germinate lora@1 style=gate tempo=3 t=2; advance 0 t=3; advance 1 t=4; "
    "fossilize 0 t=8; set_alpha_target 1 style=gate alpha_target=0.5 t=9; prune 1 alpha_speed=3 t=11; "
    "retire 0 alpha_speed=3 t=13; germinate norm@1 t=16"
)
"""Every operation, one after the other; each waits until it is legal."""


def place() -> tuple[int, int]:
    """This process's rank, and how many there are."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def dressed(model: nn.Module, kind: Kind) -> nn.Module:
    """The model as its kind of training wants it."""
    if kind == "ddp":
        return DistributedDataParallel(model)
    if kind == "fsdp":
        from torch.distributed.fsdp import fully_shard

        for part in (*list(model.children())[:2], model):
            fully_shard(part)
    return model


def shares() -> list[tuple[Tensor, Tensor]]:
    """One batch of validation: this process's share, 40 samples and 26 where there are two."""
    rank, size = place()
    inputs, targets = data()
    cut = slice(None) if size == 1 else slice(40) if rank == 0 else slice(40, None)
    return [(inputs[cut], targets[cut])]


def batches(epoch: int, parts: int = 1) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """An epoch's batches, this process's share of each, in `parts` to be accumulated."""
    inputs, targets = data()
    rank, size = place()
    order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(epoch))
    for chosen in order.split(BATCH):
        mine = chosen[: BATCH // 4 * 4].chunk(parts)  # halves of halves are of one size
        yield [(inputs[part[rank::size]], targets[part[rank::size]]) for part in mine]


@dataclass
class Life:
    """A grower and its loop; `seen` has what the network was after each epoch."""

    kind: Kind
    schedule: str = EVERYTHING
    epochs: int = 18
    parts: int = 1
    broken_epoch: int | None = None
    """In which the seed at slot 0 puts out Inf for one batch of the last process."""
    wrapped: nn.Module = field(init=False)
    seen: list[dict[str, Tensor]] = field(default_factory=list)

    def __post_init__(self) -> None:
        inputs, _ = data()
        self.wrapped = dressed(net(), self.kind)
        self.optimizer = torch.optim.SGD(self.wrapped.parameters(), 0.1, momentum=0.9)
        self.grower = esper.Grower(
            self.wrapped,
            ["0", "1"],
            optimizer=self.optimizer,
            example_input=inputs[:2],
            controller=esper.rule_policy("schedule", schedule=self.schedule),
            validate=shares(),
            epochs=self.epochs,
            accumulate=self.parts,
        )

    def train(self) -> float:
        """One epoch; clips between backward and step, as many loops do."""
        self.wrapped.train()
        broken = self.grower.epoch == self.broken_epoch
        for batch, parts in enumerate(batches(self.grower.epoch, self.parts)):
            self.optimizer.zero_grad()
            if broken and batch < 2 and place() in ((0, 1), (1, 2)):
                self._break_seed(broken=batch == 0)
            for number, (inputs, targets) in enumerate(parts):
                with self._quiet() if number + 1 < len(parts) else nullcontext():
                    loss = F.cross_entropy(self.wrapped(inputs), targets) / len(parts)
                    loss.backward()
            trained = [p for group in self.optimizer.param_groups for p in group["params"]]
            nn.utils.clip_grad_norm_(trained, 0.5)
            self.optimizer.step()
        return loss.item()

    def _break_seed(self, *, broken: bool) -> None:
        seed = self.grower.model.slots["0"].seed
        assert seed is not None
        seed.body._forward_hooks.clear()
        rows = torch.arange(BATCH) % 2 == 1 if place() == (0, 1) else torch.ones(BATCH, dtype=torch.bool)
        if broken:  # the rows of the last process
            seed.body.register_forward_hook(
                lambda _, __, output: output / (~rows[: len(output), None]).to(output)
            )

    def _quiet(self) -> AbstractContextManager[None]:
        return self.wrapped.no_sync() if isinstance(self.wrapped, DistributedDataParallel) else nullcontext()

    def go(self, epochs: int | None = None) -> "Life":
        """Train some epochs, or all that are left, with a decision after each."""
        for _ in range(self.epochs - self.grower.epoch if epochs is None else epochs):
            self.grower.step(train_loss=self.train())
            self.seen.append(self.tensors())
        return self

    def tensors(self) -> dict[str, Tensor]:
        """Every parameter, and every tensor of the optimiser's state, whole."""
        named = dict(self.grower.model.named_parameters())
        state = {
            f"{name}/{key}": value
            for name, parameter in named.items()
            for key, value in self.optimizer.state.get(parameter, {}).items()
            if isinstance(value, Tensor)
        }
        return {name: whole(tensor.detach()).clone() for name, tensor in (named | state).items()}

    def told(self) -> list[str]:
        """What was decided, with its numbers."""
        return [f"{d} {d.metrics} {d.slots}" for d in self.grower.history]


def largest_difference(ours: Sequence[dict[str, Tensor]], theirs: Sequence[dict[str, Tensor]]) -> float:
    """Between two lives, over all epochs and tensors, which must be the same ones and finite."""
    largest = 0.0
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.keys() == other.keys()
        for name in mine:
            difference = float((mine[name] - other[name]).abs().max())
            assert math.isfinite(difference), f"{name} is not finite"
            largest = max(largest, difference)
    return largest


# What tests run in every process, and how they compare what it found


@dataclass
class Record:
    """What one process saw of a life."""

    seen: list[dict[str, Tensor]]
    told: list[str]
    operations: list[str]
    losses: list[float | None] = field(default_factory=list)
    exported: dict[str, Tensor] = field(default_factory=dict)
    found: object = None


def require_equal(first: Record, second: Record) -> None:
    """To the last bit."""
    assert first.told == second.told
    assert largest_difference(first.seen, second.seen) == 0.0
    assert largest_difference([first.exported], [second.exported]) == 0.0


def _record(life: Life, found: object = None) -> Record:
    operations = [decision.action.op.name for decision in life.grower.history]
    losses = [decision.metrics.validation_loss for decision in life.grower.history]
    return Record(life.seen, life.told(), operations, losses, found=found)


def lived(kind: Kind, parts: int = 1, epochs: int = 18) -> Record:
    """A life to its end."""
    life = Life(kind, parts=parts, epochs=epochs).go()
    record = _record(life)
    record.exported = dict(life.grower.finish().state_dict())
    return record


def of_the_loop_in_processes(epochs: int) -> Record:
    """What examples/ddp_loop.py decided and exported."""
    grower, plain = importlib.import_module("ddp_loop").train(epochs)
    told = [str(decision) for decision in grower.history]
    operations = [decision.action.op.name for decision in grower.history]
    return Record([], told, operations, exported=dict(plain.state_dict()))


def with_a_broken_seed(kind: Kind) -> Record:
    """Before it blends in, and after."""
    life = Life(kind, epochs=7, broken_epoch=3).go(5)
    life.broken_epoch = 6
    return _record(life.go())


def with_a_broken_loss(kind: Kind) -> Record:
    """The last process reports NaN in its fifth epoch."""
    life = Life(kind, epochs=8).go(4)
    rank, size = place()
    loss = life.train()
    decision = life.grower.step(train_loss=float("nan") if rank == size - 1 else loss)
    life.seen.append(life.tensors())
    return _record(life.go(), decision.rolled_back)


def with_drift() -> str:
    """The last process changes one weight by itself."""
    life = Life("ddp", epochs=8).go(3)
    loss = life.train()
    rank, size = place()
    if rank == size - 1:
        with torch.no_grad():
            life.grower.model.host.get_parameter("1.0.weight")[0, 0] += 1e-6
    try:
        life.grower.step(train_loss=loss)
    except ReplicaError as error:
        return str(error)
    return "no error"


def with_disagreement() -> Record:
    """Each process has its own rng seed, controller's draws and metrics."""
    rank, _ = place()
    accuracies = torch.rand(99, generator=torch.Generator().manual_seed(rank)).tolist()
    life = Life("ddp", epochs=12)
    life.wrapped = dressed(net(), "ddp")
    life.optimizer = torch.optim.SGD(life.wrapped.parameters(), 0.1, momentum=0.9)
    life.grower = esper.Grower(
        life.wrapped,
        ["0", "1"],
        optimizer=life.optimizer,
        example_input=data()[0][:2],
        controller="random",
        validate=lambda _: {"validation_accuracy": accuracies.pop()},
        epochs=12,
        seed=rank,
    )
    return _record(life.go())


def with_a_metric() -> float | None:
    """One that is no mean over samples."""
    inputs, targets = data()
    rank, size = place()
    model = dressed(net(), "alone" if size == 1 else "ddp")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    grower = esper.Grower(
        model,
        ["0"],
        optimizer=optimizer,
        example_input=inputs[:2],
        controller="wait",
        validate=shares(),
        metric=lambda outputs, _: outputs.std(),
        mode="max",
    )
    F.cross_entropy(model(inputs[rank::size]), targets[rank::size]).backward()
    optimizer.step()
    return grower.step().metrics.validation_metric


def resumed(kind: Kind) -> tuple[Record, Record, dict[str, object]]:
    """A life that goes on after its sixth epoch, one that begins there, and what was saved."""
    life = Life(kind).go(6)
    state = life.grower.state_dict()
    life.seen.clear()
    again = Life(kind)
    again.grower.load_state_dict(state)
    return _record(life.go()), _record(again.go()), state


def remembered(kind: Kind) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The last good epoch, as a checkpoint holds it, and as it is once it was gone back to."""
    life = Life(kind).go(6)
    with torch.no_grad():
        for parameter in life.grower.model.parameters():
            parameter.add_(1.0)
    good = life.grower._guard.describe_good()
    assert good is not None
    held = {name: tensor.clone() for name, tensor in good[1].items()}
    life.grower._guard.restore()
    return held, describe(life.grower.model)[1]


class Skipping(nn.Module):
    """Its second part is left out where asked."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = net().children()

    def forward(self, x: Tensor, skip: bool = False) -> Tensor:
        h = self.first(x)
        out: Tensor = self.head(h if skip else self.second(h))
        return out


def with_an_absent_gradient() -> list[dict[str, Tensor]]:
    """Batches in which the seed is used by both processes, by the first alone, and by none."""
    inputs, targets = data()
    rank, size = place()
    model = DistributedDataParallel(Skipping(), find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    grower = esper.Grower(
        model,
        ["second"],
        optimizer=optimizer,
        example_input=inputs[:2],
        controller=esper.rule_policy("schedule", schedule="germinate mlp@second t=1; advance second t=3"),
        validate=shares(),
    )
    seen = []
    for _ in range(6):
        for skip in (False, rank == 1, True):
            optimizer.zero_grad()
            F.cross_entropy(model(inputs[rank::size], skip), targets[rank::size]).backward()
            optimizer.step()
        grower.step()
        seen.append({name: p.detach().clone() for name, p in grower.model.named_parameters()})
    return seen


def with_batch_statistics() -> tuple[dict[str, Tensor], float | None]:
    """Buffers after a step, and the validation accuracy that only rank 0 knows."""
    inputs, targets = data()
    rank, size = place()
    plain = nn.Sequential(nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7)), nn.Linear(7, 3))
    model = DistributedDataParallel(plain)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    grower = esper.Grower(model, ["0"], optimizer=optimizer, example_input=inputs[:2], controller="wait")
    F.cross_entropy(grower.model(inputs[rank::size]), targets[rank::size]).backward()
    optimizer.step()
    decision = grower.step(validation_accuracy=0.75 if rank == 0 else None)
    return {name: buffer.clone() for name, buffer in plain.named_buffers()}, decision.score


def refusals() -> dict[str, str]:
    """What a Grower says to models and options that do not fit together."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    rank, size = place()

    def split_across() -> nn.Module:
        mesh = init_device_mesh("cpu", (size, 1), mesh_dim_names=("data", "tensor"))
        model = net()
        parallelize_module(model[1], mesh["tensor"], {"0": ColwiseParallel()})
        fully_shard(model, mesh=mesh["data"])
        return model

    def partly() -> nn.Module:
        model = net()
        fully_shard(model[0])
        return model

    made: dict[str, Callable[[], nn.Module]] = {
        "plain": net,
        "partly": partly,
        "fsdp1": lambda: FullyShardedDataParallel(net(), device_id=torch.device("cpu")),
        "tensor parallel": split_across,
        "wrapped inside": lambda: dressed(esper.wrap(net(), ["0"], data()[0][:2]), "ddp"),
        "unequal": lambda: dressed(net(), "ddp"),
    }
    said = {}
    for name, make in made.items():
        model = make()
        try:
            esper.Grower(
                model,
                ["0"],
                optimizer=torch.optim.SGD(model.parameters(), 0.1),
                example_input=data()[0][:2],
                epochs=5 + rank,
            )
        except EsperError as error:
            said[name] = str(error)
    return said


def unequal_batches() -> str:
    """FSDP2, where a forward needs all processes, with a batch more in one."""
    model = dressed(net(), "fsdp")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    example, validate = data()[0][:2], shares() * (1 + place()[0])
    try:
        esper.Grower(model, ["0"], optimizer=optimizer, example_input=example, validate=validate)
    except ReplicaError as error:
        return str(error)
    return "no error"


def with_a_wrapper_made_anew() -> Record:
    """DistributedDataParallel is made again around the network that has grown, and knows the seeds there are."""
    life = Life("ddp", schedule="germinate mlp@0 tempo=3 t=1; advance 0 t=3", epochs=8).go(2)
    life.wrapped = DistributedDataParallel(life.grower.model.host)
    return _record(life.go())
