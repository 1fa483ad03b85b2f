"""A sensor whose data change three times while its network lives on: fine-tuned, wider from the start, and grown.

python examples/sensor_stream.py [--seeds 3] [--epochs 120] [--budget 1500]

Windows of a vibration sensor, drawn anew in every epoch, tell four states of a machine by their waveform. After a
quarter of the time the sensor's points are wired in another order, after half of it another sensor is mounted, turned
over and noisier, and after three quarters it is wired anew. Nobody tells the networks. All three see the same
windows; the grown one may add parameters up to a budget, and gives back what has decayed when it needs the room.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from statistics import mean, stdev

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import esper
from esper.kasmina.hosts import ConvNet
from side_by_side import Ticker

POINTS, STATES, BATCH, STEPS = 40, 4, 64, 12


@dataclass(frozen=True)
class Sensor:
    """How the sensor is mounted: the order of its points, its sign and its noise."""

    order: Tensor
    sign: float = 1.0
    noise: float = 0.6

    def windows(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """(count, 1, point) and their states (count,)."""
        states = torch.randint(STATES, (count,), generator=generator)
        times = torch.arange(POINTS) + 8.0 * torch.rand(count, 1, generator=generator)
        pitch = torch.tensor([0.35, 0.6, 0.95, 1.4])[states].unsqueeze(1)
        waves = torch.sin(pitch * times) * torch.hann_window(POINTS)
        measured = self.sign * waves + self.noise * torch.randn(count, POINTS, generator=generator)
        return measured[:, self.order].unsqueeze(1), states


def mountings(seed: int) -> list[Sensor]:
    """As it was at first, and after each of the three changes."""
    generator = torch.Generator().manual_seed(1000 + seed)
    first, again = (torch.randperm(POINTS, generator=generator) for _ in range(2))
    return [
        Sensor(torch.arange(POINTS)),
        Sensor(first),
        Sensor(first, sign=-1.0, noise=0.8),
        Sensor(again, sign=-1.0, noise=0.8),
    ]


@dataclass
class Life:
    """What came of one network: accuracy on windows that nothing was decided by, epoch by epoch."""

    accuracies: list[float]
    most_parameters: int
    story: str = ""
    decisions: tuple[esper.Decision, ...] = ()
    """One an epoch, of a network that may grow."""


def live(seed: int, epochs: int, *, width: int = 8, budget: int | None = None) -> Life:
    """Train a network for `epochs`; with a budget it may grow."""
    torch.manual_seed(seed)
    model = ConvNet(1, STATES, dims=1, widths=(width, 2 * width, 2 * width), pools=(1, 2, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    bare = sum(parameter.numel() for parameter in model.parameters())
    sensors, drawn = mountings(seed), torch.Generator().manual_seed(seed)
    held_out = [sensor.windows(600, drawn) for sensor in sensors]  # half to decide by, half to report
    phase = 0

    def accuracy(network: nn.Module, half: slice) -> float:
        inputs, states = (part[half] for part in held_out[phase])
        with torch.no_grad():
            return float((network(inputs).argmax(1) == states).float().mean())

    grower = None
    if budget is not None:
        grower = esper.Grower(
            model,
            slots=["blocks.*"],
            optimizer=optimizer,
            example_input=held_out[0][0][:2],
            controller="live_on",
            validate=lambda network: {"validation_accuracy": accuracy(network, slice(0, 300))},
            parameter_budget=budget,
        )
    network: nn.Module = model if grower is None else grower.model
    accuracies, most = [], bare
    decisions: list[esper.Decision] = []
    for epoch in range(epochs):
        phase = min(4 * epoch // epochs, 3)
        network.train()
        for _ in range(STEPS):
            inputs, states = sensors[phase].windows(BATCH, drawn)
            loss = F.cross_entropy(network(inputs), states)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        accuracies.append(accuracy(network.eval(), slice(300, None)))
        if grower is not None:
            decisions.append(grower.step(train_loss=loss))
        most = max(most, sum(parameter.numel() for parameter in network.parameters()))
    return Life(accuracies, most, "" if grower is None else grower.explain(), tuple(decisions))


def main(arguments: Sequence[str] | None = None) -> dict[str, list[Life]]:
    """Print the accuracy of the three networks in each phase and over the whole life."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=120)
    parser.add_argument("--budget", type=int, default=1500, help="parameters that may be added")
    chosen = parser.parse_args(arguments)
    seeds = range(chosen.seeds)
    ways: dict[str, dict[str, int]] = {
        "fine-tuned": {},
        "wider": {"width": 12},
        "grown": {"budget": chosen.budget},
    }
    lives: dict[str, list[Life]] = {name: [] for name in ways}
    ticker = Ticker(3 * chosen.seeds, "lives", kinds=3)
    ticker.show(0)
    for number, (seed, name) in enumerate(product(seeds, ways), start=1):
        lives[name].append(live(seed, chosen.epochs, **ways[name]))
        ticker.show(number)
    print(lives["grown"][0].story, "\n")
    print(
        f"{'':12}{'parameters':>11}" + "".join(f"{f'phase {n}':>9}" for n in range(1, 5)) + "     life  gain"
    )
    for name, each in lives.items():
        phases = [mean(mean(_phase(life, number)) for life in each) for number in range(4)]
        shown = "".join(f"{score:9.3f}" for score in (*phases, mean(mean(life.accuracies) for life in each)))
        size = max(life.most_parameters for life in each)
        print(f"{name:12}{size:>11,}{shown}  {_gain(each, lives['fine-tuned'])}")
    return lives


def _gain(ours: list[Life], theirs: list[Life]) -> str:
    """Of accuracy over the life, mean ± standard error over paired seeds."""
    gains = [mean(one.accuracies) - mean(other.accuracies) for one, other in zip(ours, theirs, strict=True)]
    return f"{mean(gains):+.3f}" + (f" ± {stdev(gains) / len(gains) ** 0.5:.3f}" if len(gains) > 1 else "")


def _phase(life: Life, number: int) -> list[float]:
    quarter = len(life.accuracies) / 4
    return life.accuracies[int(quarter * number) : max(int(quarter * (number + 1)), 1)]


if __name__ == "__main__":
    main()
