"""The recipe of `cifar10_resnet`: a residual host, SGD, one cycle, pictures mirrored and cropped at random.

Goals: hosts that are left alone reach 88.5 % on the test split in 20 epochs; 16 hosts in the engine train at twice
the samples a second of a loop by hand that is run eagerly, one host after another, on the same card. Accuracy needs
CIFAR-10 in $ESPER_DATA/cifar10; speed is measured on noise of its shape, and so is everything with --quick.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from esper.leyline import Beginning, HostStep
from esper.tolaria.data import DatasetMissing, TaskData
from esper.tolaria.engine.host import draw_views, rate_factor, shown
from esper.tolaria.engine.population import Population
from esper.tolaria.final_report import test_score
from esper.tolaria.tasks import Instance, Task, register, task
from esper.tolaria.worlds.engine import EngineWorld
from harness import Row, interleaved_seconds, ratio, report

RECIPE = "cifar10_resnet"


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--only", choices=("accuracy", "speed"), help="leave the other one out")
    parser.add_argument("--alone", type=int, default=4, help="hosts for each learning rate")
    parser.add_argument(
        "--rates", type=float, nargs="+", help="learning rates; by default that of the recipe"
    )
    parser.add_argument("--epochs", type=int, help="epochs of each host; by default those of the recipe")
    parser.add_argument("--hosts", type=int, default=16, help="hosts whose speed is measured")
    parser.add_argument("--batches", type=int, nargs="+", default=[128, 512], help="samples of a minibatch")
    parser.add_argument("--steps", type=int, default=32, help="minibatches of each host in a round")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--quick", action="store_true", help="as little as shows that it runs")
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.alone, chosen.epochs = 1, 2
        chosen.hosts, chosen.batches, chosen.steps, chosen.rounds = 2, [128], 2, 2
    return chosen


# Accuracy


def left_alone(data: TaskData, rates: Sequence[float], hosts: int, *, epochs: int, device: str) -> list[Row]:
    """Hosts of each learning rate, all at once, waiting in every epoch; test splits are opened at the end."""
    row = task(RECIPE)
    rows_of_rates = [
        replace(
            row,
            name=f"{RECIPE}_{place}",
            load=lambda _: data,
            epochs=epochs,
            optimiser=replace(row.optimiser, lr=rate),
        )
        for place, rate in enumerate(rates)
    ]
    cases = [register(variant).name for variant in rows_of_rates]
    each = [(case, seed) for case in cases for seed in range(hosts)]
    world, began = EngineWorld(len(each), device), time.perf_counter()
    world.begin_many([Beginning(index, case, seed) for index, (case, seed) in enumerate(each)])
    rolled_back = [0] * len(each)
    for epoch in range(epochs):
        world.step_many([HostStep(index) for index in range(len(each))])
        reports = [world.host(index).report for index in range(len(each))]
        rolled_back = [n + (r.rolled_back is not None) for n, r in zip(rolled_back, reports, strict=True)]
        middle = sorted(known(r.validation_accuracy) for r in reports)[len(reports) // 2]
        seconds = time.perf_counter() - began
        print(f"epoch {epoch + 1}: validation {100 * middle:.2f} % (median), {seconds:.0f} s", flush=True)
    rows: list[Row] = []
    for index, (case, seed) in enumerate(each):
        host = world.host(index)
        scored = test_score(host.model, host.data.source)
        halves = known(host.report.validation_accuracy), known(host.report.judged_accuracy)
        rows.append(
            {
                "learning rate": task(case).optimiser.lr,
                "rng seed": seed,
                "parameters": host.host_parameters,
                "epochs": host.epoch,
                "batch": row.batch,
                "training %": 100 * known(host.report.train_accuracy),
                "validation %": 100 * sum(halves) / 2,
                "test %": 100 * scored.accuracy,
                "rolled back": rolled_back[index],
            }
        )
    return rows


def known(value: float | None) -> float:
    assert value is not None
    return value


# Speed


def speed_rows(hosts: int, batches: Sequence[int], *, steps: int, rounds: int, device: str) -> list[Row]:
    rows: list[Row] = []
    for batch in batches:
        noise = task("synthetic")
        row = register(
            replace(
                task(RECIPE),
                name=f"speed_{batch}",
                load=noise.load,
                parameters=noise.parameters,
                batch=batch,
                steps_per_epoch=steps,
            )
        )
        case = f"{row.name}:samples={max(batch * steps, 512)}"
        ours, theirs = in_the_engine(case, hosts, device), by_hand(case, hosts, device)
        seconds = interleaved_seconds({"engine": ours, "by hand": theirs}, rounds=rounds, warmup=1)
        middle, low, high = ratio(seconds["by hand"], seconds["engine"])
        samples = hosts * steps * batch
        rows.append(
            {
                "hosts": hosts,
                "batch": batch,
                "engine samples / s": round(samples / min(seconds["engine"])),
                "eager samples / s": round(samples / min(seconds["by hand"])),
                "engine ms / host-minibatch": 1e3 * min(seconds["engine"]) / (hosts * steps),
                "eager ms / host-minibatch": 1e3 * min(seconds["by hand"]) / (hosts * steps),
                "times as fast": middle,
                "low": low,
                "high": high,
            }
        )
        print(rows[-1], flush=True)
    return rows


def in_the_engine(case: str, hosts: int, device: str) -> Callable[[], None]:
    """An epoch of all hosts."""
    population = Population(hosts, device)
    for index in range(hosts):
        population.begin(index, case, seed=index)

    def epoch() -> None:
        population.train_epoch()
        wait(device)

    return epoch


def by_hand(case: str, hosts: int, device: str) -> Callable[[], None]:
    """An epoch of each host after another, as anybody would write it: no clipping, nothing measured but the loss."""
    row, data = Instance.parse(case).row, Instance.parse(case).load()
    train = data.phases[0].train
    inputs = train.inputs.to(device).to(memory_format=torch.channels_last)
    targets = train.targets.to(device)
    loops = [_loop(row, data, inputs, targets, device) for _ in range(hosts)]

    def epoch() -> None:
        for loop in loops:
            loop()
        wait(device)

    return epoch


def _loop(
    row: Task, data: TaskData, inputs: torch.Tensor, targets: torch.Tensor, device: str
) -> Callable[[], None]:
    model: nn.Module = row.host(data).to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(
        model.parameters(),
        row.optimiser.lr,
        momentum=0.9,
        weight_decay=row.optimiser.weight_decay,
        fused=True,
    )
    steps, augmentation = row.steps_per_epoch or 1, row.augmentation
    assert augmentation is not None
    whole = row.epochs * steps
    scheduler = LambdaLR(optimizer, lambda step: rate_factor(row.schedule, min(step / whole, 1.0)))
    generator, running = torch.Generator().manual_seed(0), torch.zeros((), device=device)

    def epoch() -> None:
        order = torch.randperm(len(inputs), generator=generator)[: steps * row.batch].to(device)
        views = draw_views(augmentation, steps, row.batch, generator=generator).to(device)
        for indices, chosen in zip(order.view(steps, row.batch), views, strict=True):
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
                outputs = model(shown(inputs, indices, chosen, augmentation))
                loss = F.cross_entropy(outputs, targets[indices])
            loss.backward()
            optimizer.step()
            scheduler.step()
            running.add_(loss.detach())

    return epoch


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def engine_rows(quick: bool) -> list[Row]:
    """What `bench_engine_gpu.py` measures first: 32 hosts of 8-16-32 channels with a seed in each of 3 slots."""
    from bench_engine_gpu import bench_task, grown_population, seconds

    hosts, steps = 32, 22
    population = grown_population(f"{bench_task(3, 512, steps=steps)}:samples=50000", hosts)
    seconds(population.train_epoch)
    best = min(seconds(population.train_epoch) for _ in range(1 if quick else 3))
    return [{"hosts": hosts, "slots": 3, "batch": 512, "ms / host-minibatch": 1e3 * best / (hosts * steps)}]


def main() -> None:
    chosen = options()
    if chosen.only != "accuracy":
        measure_speed(chosen)
    if chosen.only != "speed":
        measure_accuracy(chosen)


def measure_speed(chosen: argparse.Namespace) -> None:
    device = chosen.device
    rows = speed_rows(chosen.hosts, chosen.batches, steps=chosen.steps, rounds=chosen.rounds, device=device)
    title = f"A host of 179k parameters, in the engine and eager, on {device} (goal on CUDA: twice as fast)"
    report("recipe_speed", title, rows)
    if device == "cuda":
        report("recipe_engine", "The engine's small hosts (goal: 0.7 ms)", engine_rows(chosen.quick))


def measure_accuracy(chosen: argparse.Namespace) -> None:
    row = task(RECIPE)
    try:
        data = Instance.parse("synthetic:samples=512" if chosen.quick else RECIPE).load()
    except DatasetMissing as error:
        print(f"no accuracy is measured: {error}")
        return
    rows = left_alone(
        data,
        chosen.rates or [row.optimiser.lr],
        chosen.alone,
        epochs=chosen.epochs or row.epochs,
        device=chosen.device,
    )
    name = "noise" if chosen.quick else "CIFAR-10"
    report("recipe_accuracy", f"{name}, hosts left alone (goal on CIFAR-10: 88.5 % on test)", rows)


if __name__ == "__main__":
    main()
