"""The engine on CUDA: milliseconds per host-minibatch, validation under coalitions, capture, memory.

Hosts are 8-16-32 convolutional classifiers (BatchNorm, pooled by 2 in each block) on CIFAR-shaped random data, with a
random seed in every slot, bf16, channels last. Goals: 0.7 ms per host-minibatch (32 hosts, batch 512, 3 slots); four
coalitions in 1.3 times four plain passes; a capture in 25 ms; memory steady over 1,000 topology changes.
"""

import random
import time
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from esper.kasmina import GrowthRules
from esper.kasmina.coalitions import plan_coalitions
from esper.kasmina.hosts import ConvNet
from esper.leyline import ActionSpec, LifecycleOp
from esper.tolaria.data import TaskData
from esper.tolaria.engine.population import Population
from esper.tolaria.engine.step import TrainingStep
from esper.tolaria.tasks import Task, all_tasks, register, task
from harness import Row, arguments, report

BANDWIDTH = 4.8e12  # bytes a second, H200
TENSOR_FLOPS = 790e12  # bf16, measured on this card
BLUEPRINTS = (
    "attention",
    "depthwise",
    "bottleneck",
    "conv_small",
    "conv_light",
    "conv_heavy",
    "norm",
    "lora",
)


def bench_task(slots: int, batch: int, *, steps: int | None = None) -> str:
    """A row like `synthetic` with so many slots; registered once."""
    name = f"bench_{slots}_{batch}_{steps}"
    widths = {1: (16,), 3: (8, 16, 32), 10: (8, 8, 8, 16, 16, 16, 16, 32, 32, 32)}[slots]
    pools = {1: (2,), 3: (2, 2, 2), 10: (1, 1, 2, 1, 1, 1, 2, 1, 1, 2)}[slots]

    def host(data: TaskData) -> nn.Module:
        return ConvNet(3, data.classes, dims=2, widths=widths, pools=pools, norm="batch")

    base = task("synthetic")
    row = Task(
        name=name,
        summary="for this benchmark",
        host=host,
        slots=("blocks.*",),
        blueprints=BLUEPRINTS,
        load=base.load,
        parameters=base.parameters,
        optimiser=base.optimiser,
        batch=batch,
        steps_per_epoch=steps,
        epochs=20,
        rules=GrowthRules(max_live_seeds=slots),
        precision="bf16",
        channels_last=True,
    )
    if name not in {known.name for known in all_tasks()}:
        register(row)
    return name


def grown_population(case: str, hosts: int, *, seeds_per_host: int | None = None) -> Population:
    """Hosts with a random seed in each slot, half of them blended in."""
    population, dice = Population(hosts, "cuda"), random.Random(0)
    for index in range(hosts):
        host = population.begin(index, case, seed=index)
        for slot in host.slots[:seeds_per_host]:
            host.apply(ActionSpec(LifecycleOp.GERMINATE, slot.name, dice.choice(BLUEPRINTS)))
            if dice.random() < 0.5:
                host.model.tick()
                host.model.report(slot.name, gradients_finite=True)
                host.apply(ActionSpec(LifecycleOp.ADVANCE, slot.name))
        host.model.tick()
    return population


def seconds(run: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    began = time.perf_counter()
    run()
    torch.cuda.synchronize()
    return time.perf_counter() - began


def training_rows(quick: bool) -> list[Row]:
    cells = [(32, 3, 512), (1, 3, 512), (8, 3, 512), (128, 3, 512), (32, 1, 512), (32, 10, 512)]
    cells += [(8, 3, 128), (32, 3, 128), (128, 3, 128)]
    rows: list[Row] = []
    for hosts, slots, batch in cells[: 2 if quick else None]:
        steps = 88 if batch == 512 else 352
        name = bench_task(slots, batch, steps=steps // 4)
        population = grown_population(f"{name}:samples=50000", hosts)
        first = seconds(population.train_epoch)
        best = min(seconds(population.train_epoch) for _ in range(2 if quick else 4))
        host_steps = hosts * (steps // 4)
        eager = eager_milliseconds(population)
        rows.append(
            {
                "hosts": hosts,
                "slots": slots,
                "batch": batch,
                "ms / host-minibatch": 1e3 * best / host_steps,
                "samples / s": round(host_steps * batch / best),
                "eager ms": eager,
                "capture ms / host": 1e3 * (first - best) / hosts - eager,
                "memory GiB": torch.cuda.max_memory_allocated() / 2**30,
            }
        )
        print(rows[-1], flush=True)
        del population
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    return rows


def eager_milliseconds(population: Population) -> float:
    """The same step without capture, one host after another."""
    steps = [
        TrainingStep(population.host(i), torch.zeros(64, device="cuda"))
        for i in range(min(len(population), 4))
    ]
    indices = torch.arange(population.host(0).task.batch, device="cuda")

    def run() -> None:
        for _ in range(5):
            for step in steps:
                step(indices)

    run()
    for index in range(len(steps)):
        population.forget_step(index)
    return 1e3 * seconds(run) / (5 * len(steps))


def validation_rows() -> list[Row]:
    """Four coalitions in one pass against four passes of the model as it is."""
    population = grown_population(f"{bench_task(3, 512)}:samples=50000", 32, seeds_per_host=2)
    hosts = [population.host(index) for index in range(32)]
    for host in hosts:  # two blended seeds: as it is, each off, none
        for slot in host.slots[:2]:
            host.model.report(slot.name, gradients_finite=True)
            if slot.stage.name == "TRAINING":
                host.apply(ActionSpec(LifecycleOp.ADVANCE, slot.name))
        host.model.tick()
    assert all(len(plan_coalitions(host.model).coalitions) == 4 for host in hosts)

    def plain() -> None:
        for host in hosts:
            host.model.eval()
            with torch.inference_mode(), torch.autocast("cuda", dtype=torch.bfloat16):
                for _ in range(4):
                    host.model(host.validation.inputs)

    population.validate()
    plain()
    ours = min(seconds(population.validate) for _ in range(3))
    theirs = min(seconds(plain) for _ in range(3))
    return [
        {
            "hosts": 32,
            "validation samples": len(hosts[0].validation),
            "coalitions ms / host": 1e3 * ours / 32,
            "four plain passes ms / host": 1e3 * theirs / 32,
            "ratio": ours / theirs,
        }
    ]


def memory_rows(changes: int) -> list[Row]:
    """Germinate, train, prune: again and again."""
    population = Population(4, "cuda")
    name = bench_task(3, 512, steps=2)
    for index in range(4):
        population.begin(index, f"{name}:samples=5000", seed=index)
    dice, rows, captures = random.Random(1), list[Row](), []
    for change in range(changes):
        host = population.host(change % 4)
        slot = host.slots[dice.randrange(3)]
        if slot.stage.is_live:
            host.model.remove(slot.name)
        elif slot.stage.name == "DORMANT":
            host.apply(ActionSpec(LifecycleOp.GERMINATE, slot.name, dice.choice(BLUEPRINTS)))
        host.model.tick()
        took = seconds(lambda: population.train_epoch([change % 4]))  # noqa: B023
        captures.append(took)
        if change + 1 in (changes // 10, changes // 2, changes):
            rows.append(
                {
                    "topology changes": change + 1,
                    "allocated MiB": torch.cuda.memory_allocated() / 2**20,
                    "reserved MiB": torch.cuda.memory_reserved() / 2**20,
                    "eager step + capture + step, ms": 1e3 * sorted(captures)[len(captures) // 2],
                }
            )
    return rows


class ByteCounter(TorchDispatchMode):
    """Bytes that the operations of a program read and write, each tensor once per operation."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = self.operations = 0

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        out = func(*args, **(kwargs or {}))
        views = {
            "view",
            "transpose",
            "t",
            "unsqueeze",
            "squeeze",
            "expand",
            "detach",
            "alias",
            "select",
            "slice",
            "permute",
            "unbind",
            "split",
            "as_strided",
            "_unsafe_view",
        }
        if func.__name__.split(".")[0] not in views:
            tensors = [leaf for leaf in tree_leaves((args, kwargs, out)) if isinstance(leaf, Tensor)]
            self.bytes += sum(t.numel() * t.element_size() for t in {id(t): t for t in tensors}.values())
            self.operations += 1
        return out


def floor_rows() -> list[Row]:
    """What one step must move and compute, counted over the hosts of the table's first row."""
    population = grown_population(f"{bench_task(3, 512)}:samples=50000", 8)
    indices = torch.arange(512, device="cuda")
    rows: list[Row] = []
    for kind in ("with seeds", "bare"):
        if kind == "bare":
            population = Population(1, "cuda")
            population.begin(0, f"{bench_task(3, 512)}:samples=50000", 0)
        moved, operations, flops = 0, 0, 0
        for index in range(len(population)):
            step = TrainingStep(population.host(index), torch.zeros(64, device="cuda"))
            step(indices)
            with ByteCounter() as counter:
                step(indices)
            with FlopCounterMode(display=False) as counted:
                step(indices)
            moved, operations = moved + counter.bytes, operations + counter.operations
            flops += counted.get_total_flops()
        hosts = len(population)
        rows.append(
            {
                "host": kind,
                "operations": operations // hosts,
                "MB moved as written": moved / hosts / 1e6,
                "ms at 4.8 TB/s": 1e3 * moved / hosts / BANDWIDTH,
                "GFLOP": flops / hosts / 1e9,
                "ms at 790 TFLOP/s": 1e3 * flops / hosts / TENSOR_FLOPS,
            }
        )
    return rows


def main() -> None:
    options = arguments(__doc__ or "")
    if not torch.cuda.is_available():
        print("bench_engine_gpu: no CUDA device here, nothing was measured")
        return
    report("engine_gpu_floor", "What a training step must do, by count", floor_rows())
    report("engine_gpu", "Training, CUDA graphs over 16 streams", training_rows(options.quick))
    report("engine_gpu_validation", "Validation under four coalitions", validation_rows())
    report("engine_gpu_memory", "Memory over topology changes", memory_rows(100 if options.quick else 1000))


if __name__ == "__main__":
    main()
