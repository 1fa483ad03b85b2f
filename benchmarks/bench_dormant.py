"""What a wrapped model costs while nothing grows: forward and backward against the bare host (goal: < 1 %)."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

import esper
from esper.kasmina.hosts import GPT, MLP, ConvNet
from harness import Row, arguments, interleaved_seconds, median_milliseconds, ratio, report


def cases() -> dict[str, tuple[Callable[[], nn.Module], Tensor]]:
    return {
        "MLP 256-256-256, batch 256": (lambda: MLP(64, 10, (256, 256, 256)), torch.randn(256, 64)),
        "ConvNet 8-16-16, 1-D, batch 64": (lambda: ConvNet(1, 10, dims=1), torch.randn(64, 1, 40)),
        "ConvNet 8-16-32, 2-D, batch 64": (
            lambda: ConvNet(3, 10, dims=2, widths=(8, 16, 32)),
            torch.randn(64, 3, 32, 32),
        ),
        "GPT 4 x 128, batch 8 x 64": (
            lambda: GPT(65, 64, layers=4, width=128),
            torch.randint(65, (8, 64)),
        ),
    }


def step(model: nn.Module, x: Tensor) -> Callable[[], None]:
    def run() -> None:
        model.zero_grad(set_to_none=True)
        out = model(x)
        assert isinstance(out, Tensor)
        out.square().mean().backward()

    return run


def main() -> None:
    options = arguments(__doc__ or "")
    torch.set_num_threads(1)
    rows: list[Row] = []
    for name, (make, x) in cases().items():
        bare, wrapped = make(), esper.wrap(make(), ["blocks.*"], x)
        seconds = interleaved_seconds(
            {"bare": step(bare, x), "wrapped": step(wrapped, x), "bare again": step(make(), x)},
            rounds=40 if options.quick else 400,
        )
        middle, low, high = ratio(seconds["wrapped"], seconds["bare"])
        noise, _, _ = ratio(seconds["bare again"], seconds["bare"])
        rows.append(
            {
                "host": name,
                "slots": len(wrapped.slots),
                "bare ms": median_milliseconds(seconds["bare"]),
                "wrapped / bare": f"{middle:.4f}",
                "95 % low": f"{low:.4f}",
                "95 % high": f"{high:.4f}",
                "bare / bare": f"{noise:.4f}",
            }
        )
    report("dormant", "A wrapped model with all slots dormant, forward + backward", rows)


if __name__ == "__main__":
    main()
