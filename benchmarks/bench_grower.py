"""What a Grower costs an epoch of training and validation, against the same epoch without one.

Goals: no live seed <= 1.02, two live seeds <= 1.3, a twin <= 2.1.

Where freed memory goes back to the system, as it does by default, an epoch has from none to 30,000 page faults more,
by luck, which is up to a tenth of its time. With `--memory kept` glibc keeps it, for all that is timed.
"""

import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import esper
from esper.grower.validating import LoaderValidation
from esper.kasmina.hosts import ConvNet
from harness import Row, interleaved_seconds, keep_freed_memory, median_milliseconds, options, ratio, report

BATCH, TRAIN_BATCHES, VALIDATION_BATCHES = 64, 16, 4
SEEDS = ("conv_light", "norm")
"""Germinated at the last two slots, and blended in before anything is timed."""
Batch = tuple[Tensor, Tensor]


def host() -> nn.Module:
    """44,111 parameters."""
    return ConvNet(3, 10, dims=2, widths=(29, 48, 69), pools=(2, 2, 2))


def data(batches: int) -> list[Batch]:
    generator = torch.Generator().manual_seed(batches)
    return [
        (torch.randn(BATCH, 3, 16, 16, generator=generator), torch.randint(10, (BATCH,), generator=generator))
        for _ in range(batches)
    ]


TRAIN, VALIDATION = data(TRAIN_BATCHES), data(VALIDATION_BATCHES)


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch) -> Tensor:
    loss = F.cross_entropy(model(batch[0]), batch[1])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def bare(model: nn.Module) -> Callable[[], None]:
    """A loop without a Grower."""
    validate = LoaderValidation(VALIDATION)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)

    def epoch() -> None:
        model.train()
        for batch in TRAIN:
            loss = train_step(model, optimizer, batch)
        loss.item()
        model.eval()
        with torch.no_grad():
            validate(model)

    return epoch


def growing(
    schedule: str, *, live: int, twin: bool = False
) -> tuple[Callable[[], None], Callable[[], nn.Module]]:
    """A Grower that follows a script and then waits; timed when the script is done. And its network as it is then."""
    model = host()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    grower = esper.Grower(
        model,
        ["blocks.*"],
        optimizer=optimizer,
        example_input=TRAIN[0][0][:2],
        controller=esper.rule_policy("schedule", schedule=schedule),
        validate=VALIDATION,
        twin=train_step if twin else None,
    )

    def epoch() -> None:
        grower.model.train()
        for batch in TRAIN:
            loss = grower.train(batch) if twin else train_step(grower.model, optimizer, batch)
        assert isinstance(loss, Tensor)
        grower.step(train_loss=loss)

    for _ in range(7 if live else 1):
        epoch()
    assert len(grower.model.live_slots) == live
    return epoch, grower.model.export


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument(
        "--memory", choices=("kept", "returned"), default="returned", help="that is freed (%(default)s)"
    )
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    if chosen.memory == "kept":
        keep_freed_memory()
    script = "; ".join(
        f"germinate {kind}@blocks.{place} t={place}; advance blocks.{place} t={place + 2}"
        for place, kind in enumerate(SEEDS, start=1)
    )
    two_seeds, grown = growing(script, live=2)
    candidates = {
        "no Grower": bare(host()),
        "no live seed": growing("germinate norm@blocks.0 t=999999", live=0)[0],
        "two live seeds": two_seeds,
        "no Grower, the network with two seeds": bare(grown()),
        "a twin, no live seed": growing("germinate norm@blocks.0 t=999999", live=0, twin=True)[0],
        "no Grower again": bare(host()),
    }
    # processor time: other processes do not count
    seconds = interleaved_seconds(candidates, rounds=3 if chosen.quick else 30, clock=time.process_time)
    goals = {"no live seed": "1.02", "two live seeds": "1.3", "a twin, no live seed": "2.1"}
    rows: list[Row] = []
    for name, measured in seconds.items():
        middle, low, high = ratio(measured, seconds["no Grower"])
        rows.append(
            {
                "epoch": name,
                "ms": median_milliseconds(measured),
                "over no Grower": f"{middle:.3f}",
                "95 % low": f"{low:.3f}",
                "95 % high": f"{high:.3f}",
                "goal": goals.get(name, ""),
            }
        )
    title = f"An epoch of {TRAIN_BATCHES} + {VALIDATION_BATCHES} batches, conv net of 44k parameters"
    report("grower", title, rows)


if __name__ == "__main__":
    main()
