"""The engine on the CPU against a loop written by hand: one epoch of the same host on the same data (goal: <= 5 %).

Also what it pays to keep freed memory (glibc), with and without seeds, in training and in validation.
"""

import multiprocessing
import statistics
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from esper.leyline import ActionSpec, LifecycleOp
from esper.tolaria.engine.population import Population
from esper.tolaria.tasks import Instance, task
from harness import Row, arguments, interleaved_seconds, keep_freed_memory, median_milliseconds, ratio, report

CASES = ("mnist1d", "digits")


def hand_written(case: str, *, fused: bool | None = None) -> Callable[[], None]:
    """What anybody would write: shuffled minibatches, Adam, the training loss and accuracy of the epoch."""
    instance = Instance.parse(case)
    row, data = task(instance.task), instance.load()
    torch.manual_seed(0)
    model: nn.Module = row.host(data)
    optimizer = torch.optim.Adam(model.parameters(), row.optimiser.lr, fused=fused)
    train = data.phases[0].train
    steps, generator = row.steps_per_epoch or len(train) // row.batch, torch.Generator().manual_seed(0)

    def epoch() -> None:
        order = torch.cat(
            [
                torch.randperm(len(train), generator=generator)
                for _ in range(-(-steps * row.batch // len(train)))
            ]
        )
        loss_sum, correct = torch.zeros(()), torch.zeros(())
        for step in range(steps):
            indices = order[step * row.batch : (step + 1) * row.batch]
            optimizer.zero_grad(set_to_none=True)
            logits = model(train.inputs[indices])
            loss = F.cross_entropy(logits, train.targets[indices])
            loss.backward()
            optimizer.step()
            loss_sum += loss.detach()
            correct += (logits.argmax(-1) == train.targets[indices]).float().mean()

    return epoch


def engine(case: str) -> Callable[[], None]:
    population = Population(1)
    population.begin(0, case, seed=0)
    return lambda: _discard(population.train_epoch())


def _discard(_: object) -> None:
    pass


def overhead_rows(rounds: int) -> list[Row]:
    rows: list[Row] = []
    for case in CASES:
        seconds = interleaved_seconds(
            {
                "engine": engine(case),
                "by hand": hand_written(case),
                "by hand, fused Adam": hand_written(case, fused=True),
            },
            rounds=rounds,
        )
        for other in ("by hand", "by hand, fused Adam"):
            middle, low, high = ratio(seconds["engine"], seconds[other])
            rows.append(
                {
                    "case": case,
                    "against": other,
                    "engine ms / epoch": median_milliseconds(seconds["engine"]),
                    "theirs ms / epoch": median_milliseconds(seconds[other]),
                    "engine / theirs": f"{middle:.3f}",
                    "95 % low": f"{low:.3f}",
                    "95 % high": f"{high:.3f}",
                }
            )
    return rows


def _timed(keep: bool, rounds: int) -> dict[str, float]:
    """In a process of its own, for an allocator cannot be set back. Median seconds of each kind of pass."""
    torch.set_num_threads(1)
    if keep:
        keep_freed_memory()
    population = Population(1)
    host = population.begin(0, "mnist1d", seed=0)
    bare = interleaved_seconds(
        {"train": population.train_epoch, "validate": population.validate}, rounds=rounds
    )
    for slot, blueprint in (("blocks.0", "mixer"), ("blocks.2", "conv_heavy")):
        host.apply(ActionSpec(LifecycleOp.GERMINATE, slot, blueprint))
        host.model.tick()
        population.train_epoch()
        host.apply(ActionSpec(LifecycleOp.ADVANCE, slot))
        host.model.tick()
    grown = interleaved_seconds(
        {"train": population.train_epoch, "validate": population.validate}, rounds=rounds
    )
    named = {f"{kind}, bare": times for kind, times in bare.items()}
    named |= {f"{kind}, two seeds": times for kind, times in grown.items()}
    return {name: statistics.median(times) for name, times in named.items()}


def allocator_rows(rounds: int, repeats: int) -> list[Row]:
    spawn = multiprocessing.get_context("spawn")
    measured: dict[bool, list[dict[str, float]]] = {False: [], True: []}
    for _ in range(repeats):
        for keep in (False, True):
            with spawn.Pool(1) as pool:
                measured[keep].append(pool.apply(_timed, (keep, rounds)))
    rows: list[Row] = []
    for name in measured[False][0]:
        ours, theirs = ([run[name] for run in measured[keep]] for keep in (True, False))
        middle, low, high = ratio(ours, theirs)
        rows.append(
            {
                "pass": name,
                "as it comes, ms": median_milliseconds(theirs),
                "keeping memory, ms": median_milliseconds(ours),
                "ratio": f"{middle:.3f}",
                "95 % low": f"{low:.3f}",
                "95 % high": f"{high:.3f}",
            }
        )
    return rows


def main() -> None:
    options = arguments(__doc__ or "")
    torch.set_num_threads(1)
    report(
        "engine_cpu",
        "An epoch in the engine against a loop by hand",
        overhead_rows(10 if options.quick else 100),
    )
    rows = allocator_rows(5 if options.quick else 20, 2 if options.quick else 8)
    report("engine_cpu_allocator", "Keeping freed memory, on the CPU", rows)


if __name__ == "__main__":
    main()
