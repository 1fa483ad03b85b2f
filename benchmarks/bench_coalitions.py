"""K coalitions of seeds in one stacked forward, in chunks, and in K separate passes."""

from functools import partial

import torch
from torch import Tensor, nn

import esper
from esper.kasmina import GrowingModel, GrowthRules, forward_coalitions
from esper.kasmina.hosts import GPT, MLP, ConvNet
from harness import Row, arguments, interleaved_seconds, median_milliseconds, ratio, report

COALITIONS = 12


def grown(host: nn.Module, x: Tensor, blueprint: str, causal: bool = False) -> GrowingModel:
    model = esper.wrap(host, ["blocks.*"], x, causal=causal, rules=GrowthRules(max_live_seeds=4))
    for slot in model.slots:
        model.germinate(slot, blueprint)
    return model.eval()


@torch.inference_mode()
def evaluate(model: GrowingModel, x: Tensor, coalitions: list[frozenset[str]], chunk: int) -> None:
    forward_coalitions(model, x, coalitions, chunk=chunk)


def main() -> None:
    options = arguments(__doc__ or "")
    torch.set_num_threads(1)
    images, series = torch.randn(128, 3, 32, 32), torch.randn(500, 1, 40)
    flat, tokens = torch.randn(512, 64), torch.randint(65, (16, 64))
    cases: dict[str, tuple[GrowingModel, Tensor]] = {
        "MLP 256 x 4, batch 512": (grown(MLP(64, 10, (256,) * 4), flat, "mlp"), flat),
        "ConvNet 8-16-16-16, 1-D, batch 500": (
            grown(ConvNet(1, 10, dims=1, widths=(8, 16, 16, 16), pools=(1, 2, 2, 1)), series, "conv_small"),
            series,
        ),
        "ConvNet 8-16-32-32, 2-D, batch 128": (
            grown(ConvNet(3, 10, dims=2, widths=(8, 16, 32, 32), pools=(1, 2, 2, 1)), images, "conv_light"),
            images,
        ),
        "GPT 4 x 64, batch 16 x 64": (grown(GPT(65, 64, layers=4), tokens, "attention", causal=True), tokens),
    }
    rows: list[Row] = []
    for name, (model, x) in cases.items():
        slots = list(model.slots)
        coalitions = [
            frozenset(s for bit, s in enumerate(slots) if mask >> bit & 1) for mask in range(COALITIONS)
        ]

        seconds = interleaved_seconds(
            {
                way: partial(evaluate, model, x, coalitions, chunk)
                for way, chunk in (("separate", 1), ("chunks of 4", 4), ("stacked", COALITIONS))
            },
            rounds=3 if options.quick else 30,
        )
        row: dict[str, str | float | int] = {
            "host": name,
            "coalitions": COALITIONS,
            "separate ms": median_milliseconds(seconds["separate"]),
        }
        for way in ("chunks of 4", "stacked"):
            middle, low, high = ratio(seconds[way], seconds["separate"])
            row[f"{way} / separate"] = f"{middle:.3f} [{low:.3f}, {high:.3f}]"
        rows.append(row)
    report("coalitions", "Evaluating coalitions of seeds", rows)


if __name__ == "__main__":
    main()
