"""Optimisers by operations: what `docs/optimisers.md` says of each, and what is done to find out."""

import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim
from torch.optim import Optimizer

from esper.kasmina import GrowingModel
from esper.kasmina.snapshots import ModelSnapshot
from esper.leyline import Layout, Stage
from tiny import SLOT, grow_until, tiny_input, tiny_model

Make = Callable[[Sequence[nn.Parameter]], Optimizer]


def _torch(name: str, **options: object) -> Make:
    return lambda parameters: getattr(optim, name)(parameters, **options)


def _others(package: str, name: str, **options: object) -> Make:
    return lambda parameters: getattr(pytest.importorskip(package), name)(parameters, **options)


def _forms(name: str, *, fused: bool = False, **options: object) -> dict[str, Make]:
    """An optimiser as it is, over lists of tensors, and in one kernel."""
    forms = {f"{name} (foreach)": _torch(name, foreach=True, **options)}
    if fused:
        forms[f"{name} (fused)"] = _torch(name, fused=True, **options)
    return {name: _torch(name, foreach=False, **options), **forms}


OPTIMISERS: dict[str, Make] = {
    **_forms("SGD", fused=True, lr=0.1, momentum=0.9),
    **_forms("Adam", fused=True, lr=0.01),
    **_forms("AdamW", fused=True, lr=0.01, weight_decay=0.1, amsgrad=True),
    **_forms("NAdam", lr=0.01),
    **_forms("RAdam", lr=0.01),
    **_forms("RMSprop", lr=0.01, momentum=0.9, centered=True),
    **_forms("Adagrad", fused=True, lr=0.01, initial_accumulator_value=0.1),
    **_forms("Adamax", lr=0.01),
    **_forms("Adadelta", lr=0.5),
    **_forms("ASGD", lr=0.01, t0=2.0),
    **_forms("Rprop", lr=0.01),
    **_forms("Adafactor", lr=0.01),
    "lion_pytorch.Lion": _others("lion_pytorch", "Lion", lr=1e-3),
    "schedulefree.SGDScheduleFree": _others("schedulefree", "SGDScheduleFree", lr=0.1),
    "schedulefree.AdamWScheduleFree": _others("schedulefree", "AdamWScheduleFree", lr=0.01),
}
REFUSED: dict[str, tuple[Make, str]] = {
    "LBFGS": (_torch("LBFGS"), "keeps a list of all parameters and steps them as one"),
    "SparseAdam": (_torch("SparseAdam"), "takes sparse gradients only; a seed's are dense"),
    "Muon": (
        lambda parameters: optim.Muon([p for p in parameters if p.ndim == 2]),
        "takes matrices only; attach the optimiser of the host's other parameters",
    ),
}


@dataclass
class Life:
    """A growing model with its optimiser."""

    model: GrowingModel
    optimizer: Optimizer

    @staticmethod
    def begin(make: Make) -> "Life":
        model = tiny_model(Layout.FLAT, 5)
        optimizer: Any = make(list(model.parameters()))
        model.attach(optimizer)
        if hasattr(optimizer, "train"):  # of schedule-free ones
            optimizer.train()
        return Life(model, optimizer)

    def grown(self, stage: Stage) -> "Life":
        """With a seed in this stage, after steps on the way there."""
        self.train(2)
        grow_until(self.model, SLOT, Stage.TRAINING, "mlp")
        self.train(2)
        if stage is not Stage.TRAINING:
            self.model.tick()
            self.model.report(SLOT, gradients_finite=True)
            self.model.advance(SLOT)
            while self.model.slots[SLOT].stage is Stage.BLENDING:
                self.model.tick()
                self.train(1)
        return self

    def train(self, steps: int) -> None:
        for _ in range(steps):
            self.optimizer.zero_grad()
            out = self.model(tiny_input(Layout.FLAT))
            assert isinstance(out, Tensor)
            (out - 1).square().mean().backward()
            self.optimizer.step()
        self.require_each_parameter_once()

    def seed_parameters(self) -> list[nn.Parameter]:
        seed = self.model.slots[SLOT].seed
        return [] if seed is None else list(seed.parameters())

    def values(self) -> list[Tensor]:
        return [parameter.detach().clone() for parameter in self.model.parameters()]

    def require_each_parameter_once(self) -> None:
        """Every parameter that is trained, and no other, is in one group; the same for state."""
        held = [id(parameter) for group in self.optimizer.param_groups for parameter in group["params"]]
        trained = [id(parameter) for parameter in self.model.parameters() if parameter.requires_grad]
        assert sorted(held) == sorted(trained)
        assert {id(parameter) for parameter in self.optimizer.state} <= set(trained)


def _equal(one: Iterable[Tensor], other: Iterable[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def germinate(make: Make) -> None:
    """A group of its own with the part's options; the seed learns, and the host learns as without it."""
    life, alone = Life.begin(make), Life.begin(make)
    for each in (life, alone):
        each.train(2)
    life.model.germinate(SLOT, "mlp")
    home, own = life.optimizer.param_groups
    begun_anew = life.model.care.begun_anew  # type: ignore[union-attr]
    for key in home.keys() - {"params", "lr"} - begun_anew:
        assert own[key] == home[key], key
    assert own["lr"] == 3 * home["lr"]
    born = [parameter.detach().clone() for parameter in life.seed_parameters()]
    for each in (life, alone):
        each.train(3)
    assert _equal(life.model.bare_parameters(), alone.model.bare_parameters())
    assert not any(torch.equal(now, then) for now, then in zip(life.seed_parameters(), born, strict=True))


def blend(make: Make) -> None:
    """Host and seed go on learning together."""
    life = Life.begin(make).grown(Stage.HOLDING)
    before = life.values()
    life.train(2)
    assert not any(torch.equal(now, then) for now, then in zip(life.values(), before, strict=True))


def fossilise(make: Make) -> None:
    """It joins its part's group, its state with it."""
    life = Life.begin(make).grown(Stage.HOLDING)
    kept = {parameter: dict(life.optimizer.state[parameter]) for parameter in life.seed_parameters()}
    life.model.fossilize(SLOT)
    assert len(life.optimizer.param_groups) == 1
    for parameter, state in kept.items():
        assert all(life.optimizer.state[parameter][key] is value for key, value in state.items())
    life.train(2)


def prune(make: Make) -> None:
    """Its group and state are gone; what is left goes on."""
    life = Life.begin(make).grown(Stage.HOLDING)
    leaving = life.seed_parameters()
    life.model.prune(SLOT)
    assert len(life.optimizer.param_groups) == 1
    assert not any(parameter in life.optimizer.state for parameter in leaving)
    life.train(2)


def save_and_load(make: Make) -> None:
    """Bit for bit, with a live seed and with a fossilised one."""
    for fossilised in (False, True):
        life, again = Life.begin(make).grown(Stage.HOLDING), Life.begin(make)
        if fossilised:
            life.model.fossilize(SLOT)
        with tempfile.TemporaryDirectory() as folder:
            life.model.save(Path(folder) / "grown.safetensors")
            again.model.load(Path(folder) / "grown.safetensors")
        for each in (life, again):
            each.train(3)
        assert _equal(life.values(), again.values())


def roll_back(make: Make) -> None:
    """As if nothing had happened since, whether the seed was pruned meanwhile or not."""
    life = Life.begin(make).grown(Stage.HOLDING)
    snapshot = ModelSnapshot(life.model)
    life.train(3)
    expected = life.values()
    for change in (life.model.prune, life.model.fossilize):
        snapshot.restore()
        change(SLOT)
        life.train(2)
    snapshot.restore()
    life.train(3)
    assert _equal(life.values(), expected)


OPERATIONS: dict[str, Callable[[Make], None]] = {
    "germinate, train alone": germinate,
    "blend": blend,
    "fossilise": fossilise,
    "prune": prune,
    "save and load": save_and_load,
    "roll back": roll_back,
}


def table() -> str:
    """The table of the page, as Markdown."""
    rows = [["optimiser", *OPERATIONS], ["---"] * (1 + len(OPERATIONS))]
    rows += [[f"`{name}`", *["yes"] * len(OPERATIONS)] for name in OPTIMISERS]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    refused = ["", "| refused | because it |", "| --- | --- |"]
    return "\n".join(lines + refused + [f"| `{name}` | {reason} |" for name, (_, reason) in REFUSED.items()])
