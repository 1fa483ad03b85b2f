"""An exported grown model against the same architecture written by hand, and against the growing model."""

from functools import partial

import torch
from torch import Tensor, nn

import esper
from esper.kasmina.hosts import ConvNet
from esper.leyline import Stage
from harness import Row, arguments, interleaved_seconds, median_milliseconds, ratio, report


class ByHand(nn.Module):
    """conv_heavy behind each of two blocks, as one would write it."""

    def __init__(self, host: ConvNet) -> None:
        super().__init__()
        self.blocks, self.head = host.blocks, host.head
        self.first, self.second = ResidualConv(16), ResidualConv(32)

    def forward(self, x: Tensor) -> Tensor:
        h = self.second(self.blocks[1](self.first(self.blocks[0](x))))
        logits: Tensor = self.head(self.blocks[2](h).flatten(2).mean(2))
        return logits


class ResidualConv(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.convs = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1), nn.GELU(), nn.Conv2d(width, width, 3, padding=1)
        )
        self.scale = nn.Parameter(torch.zeros(width, 1, 1))

    def forward(self, h: Tensor) -> Tensor:
        out: Tensor = h + self.scale * self.convs(h)
        return out


def host() -> ConvNet:
    return ConvNet(3, 10, dims=2, widths=(16, 32, 64))


def grown(x: Tensor) -> esper.GrowingModel:
    model = esper.wrap(host(), ["blocks.0", "blocks.1"], x)
    for slot in model.slots:
        model.germinate(slot, "conv_heavy")
        model.tick()
        model.report(slot, gradients_finite=True)
        model.advance(slot)
    while any(slot.stage is not Stage.HOLDING for slot in model.slots.values()):
        model.tick()
    for slot in model.slots:
        model.fossilize(slot)
    return model


def train_step(model: nn.Module, x: Tensor) -> None:
    model.zero_grad(set_to_none=True)
    out: Tensor = model(x)
    out.square().mean().backward()


@torch.inference_mode()
def infer(model: nn.Module, x: Tensor) -> None:
    model(x)


def main() -> None:
    options = arguments(__doc__ or "")
    torch.set_num_threads(1)
    x = torch.randn(32, 3, 32, 32)
    model = grown(x)
    networks: dict[str, nn.Module] = {
        "by hand": ByHand(host()),
        "exported": model.export(),
        "growing": model,
        "by hand again": ByHand(host()),  # how far apart two copies of one network come out
    }
    rows: list[Row] = []
    for what, step in (("forward", infer), ("forward + backward", train_step)):
        seconds = interleaved_seconds(
            {name: partial(step, network, x) for name, network in networks.items()},
            rounds=10 if options.quick else 150,
        )
        row: dict[str, str | float | int] = {
            "pass": what,
            "by hand ms": median_milliseconds(seconds["by hand"]),
        }
        for name in ("exported", "growing", "by hand again"):
            middle, low, high = ratio(seconds[name], seconds["by hand"])
            row[f"{name} / by hand"] = f"{middle:.3f} [{low:.3f}, {high:.3f}]"
        rows.append(row)
    report("export", "Two fossilised conv_heavy seeds in a 16-32-64 ConvNet, batch 32", rows)


if __name__ == "__main__":
    main()
