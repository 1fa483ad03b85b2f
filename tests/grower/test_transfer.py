"""One controller, unchanged, on hosts that have nothing in common: slot counts, widths, layouts, blueprints."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import esper
from esper.grower import Grower
from esper.grower.history import described
from esper.grower.host import LoopHost
from esper.kasmina import Site, forget
from esper.kasmina.hosts import GPT, MLP, ConvNet
from esper.leyline import EpochReport, LifecycleOp, Stage
from esper.tamiyo.actions import GrowthSpace, decode
from esper.tamiyo.controller import Controller
from esper.tamiyo.observation import Observer
from esper.tamiyo.policy import ActorState
from tiny_controllers import tiny_controller

SHIPPED = "cpu-v1"
EPOCHS = 12


def controller(name: str, folder: Path) -> Controller:
    """A shipped one, or one that knows nothing and so tries everything."""
    if name != "tiny":
        return Controller.load(name)
    tiny_controller(1, scale=3.0).save(folder / "elsewhere")
    return Controller.load(folder / "elsewhere")


@pytest.fixture
def strange() -> Iterator[str]:
    @esper.blueprint("strange", layouts=["flat", "image"])
    def strange(site: Site) -> nn.Module:
        if site.layout == "image":
            return nn.Conv2d(site.channels, site.channels, 1, groups=site.channels)
        return nn.Sequential(nn.Linear(site.channels, 2), nn.GELU(), nn.Linear(2, site.channels))

    yield "strange"
    forget("strange")


@dataclass(frozen=True)
class Case:
    model: Callable[[], nn.Module]
    slots: list[str]
    inputs: Callable[[torch.Generator], Tensor]
    causal: bool = False
    blueprints: list[str] | None = None


def drawn(*shape: int) -> Callable[[torch.Generator], Tensor]:
    return lambda generator: torch.randn(*shape, generator=generator)


BLOCKS = ["blocks.*"]
CASES = {
    "one flat slot": Case(
        lambda: nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2)), ["1"], drawn(11, 5)
    ),
    "a deep MLP": Case(lambda: MLP(5, 2, (13, 7, 17)), BLOCKS, drawn(11, 5)),
    "two slots of images": Case(
        lambda: ConvNet(3, 2, dims=2, widths=(3, 5), pools=(1, 2)), BLOCKS, drawn(11, 3, 8, 8)
    ),
    "nothing but a blueprint of one's own": Case(
        lambda: ConvNet(3, 2, dims=2, widths=(3, 67), pools=(1, 2)),
        BLOCKS,
        drawn(11, 3, 8, 8),
        blueprints=["strange"],
    ),
    "seven slots of series": Case(
        lambda: ConvNet(2, 2, dims=1, widths=(5, 7, 11, 5, 3, 2, 2), pools=(1, 2, 1, 1, 1, 1, 1)),
        BLOCKS,
        drawn(11, 2, 16),
    ),
    "tokens": Case(
        lambda: GPT(11, 7, heads=3, width=12),
        BLOCKS,
        lambda generator: torch.randint(11, (11, 7), generator=generator),
        causal=True,
    ),
}


@pytest.mark.parametrize(
    ("who", "sampled"),
    [(SHIPPED, False), pytest.param(SHIPPED, True, marks=pytest.mark.slow), ("tiny", True)],
)
@pytest.mark.parametrize("name", CASES)
def test_it_runs_unchanged_anywhere(name: str, who: str, sampled: bool, strange: str, tmp_path: Path) -> None:
    assert strange
    case = CASES[name]
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        model = case.model()
    inputs = case.inputs(torch.Generator().manual_seed(0))
    targets = torch.arange(len(inputs)) % 2
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    def loss(net: nn.Module) -> Tensor:
        logits = net(inputs)
        assert isinstance(logits, Tensor)
        return F.cross_entropy(logits if logits.ndim == 2 else logits.mean(1), targets)

    grower = Grower(
        model,
        case.slots,
        optimizer=optimizer,
        example_input=inputs[:2],
        controller=controller(who, tmp_path),
        validate=lambda net: {"validation_loss": float(loss(net))},
        generator=torch.Generator().manual_seed(3) if sampled else None,
        epochs=EPOCHS,
        causal=case.causal,
        blueprints=case.blueprints,
    )
    for _ in range(EPOCHS):
        optimizer.zero_grad()
        value = loss(grower.model)
        value.backward()
        optimizer.step()
        legal = legal_now(grower)
        decision = grower.step(train_loss=value)
        assert decision.action.op is LifecycleOp.WAIT or described(decision.action) in legal
    done = [decision.action.op for decision in grower.history]
    assert LifecycleOp.GERMINATE in done or not sampled  # a first choice may be to wait
    assert all(decision.probability is not None for decision in grower.history[:-1])
    assert not any(decision.notes for decision in grower.history)  # it asked for nothing illegal
    plain = grower.finish().eval()
    expected, found = grower.model.eval()(inputs), plain(inputs)
    assert isinstance(expected, Tensor)
    torch.testing.assert_close(found, expected)
    assert any(slot.seed for slot in grower.model.slots.values()) == (grower.model.added_parameters > 0)


def legal_now(grower: Grower) -> set[str]:
    """What the model itself says can be done, in words."""
    words = set()
    for name, legal in grower.model.legal_operations().items():
        words |= {f"{op.name.lower()} {name}" for op in legal.operations}
        words |= {f"germinate {blueprint} at {name}" for blueprint in legal.blueprints}
        words |= {f"set alpha target of {name} to {target:g}" for target in legal.alpha_targets}
    return words


# What is decided does not depend on who else is there, nor on this machine


@dataclass(frozen=True)
class Curve:
    """What a host showed epoch by epoch, as it was measured once, rounded."""

    samples: int
    validation: tuple[float, ...]
    training: tuple[float, ...]


SHUFFLED = Curve(
    1966,
    (0.19, 0.23, 0.27, 0.27, 0.24, 0.29, 0.29, 0.34, 0.31, 0.29, 0.38, 0.34),
    (0.14, 0.19, 0.23, 0.26, 0.24, 0.25, 0.27, 0.28, 0.29, 0.29, 0.28, 0.31),
)
DIGITS = Curve(
    700,
    (0.21, 0.31, 0.41, 0.44, 0.57, 0.58, 0.59, 0.57, 0.64, 0.68, 0.66, 0.64),
    (0.13, 0.23, 0.31, 0.42, 0.48, 0.57, 0.61, 0.59, 0.63, 0.71, 0.72, 0.71),
)
FEW_AND_NOISY = Curve(
    649,
    (0.28, 0.34, 0.43, 0.48, 0.59, 0.62, 0.55, 0.64, 0.67, 0.68, 0.77, 0.71),
    (0.15, 0.22, 0.27, 0.35, 0.41, 0.43, 0.43, 0.47, 0.47, 0.53, 0.53, 0.55),
)


def untrained(curve: Curve, *widths: int, blueprints: list[str] | None = None) -> LoopHost:
    """A host of series whose numbers are written by hand."""
    pools = tuple(2 if place in (1, 2) else 1 for place in range(len(widths)))
    network = ConvNet(1, 10, dims=1, widths=widths, pools=pools)
    model = esper.wrap(network, ["blocks.*"], torch.zeros(2, 1, 40), blueprints=blueprints)
    return LoopHost(model, torch.optim.SGD(model.parameters(), lr=0.1), curve.samples)


def pass_epoch(host: LoopHost, curve: Curve) -> None:
    """As after an epoch of training that went like this, with seeds that help a little."""
    for name, slot in host.model.slots.items():
        if slot.stage.is_live:
            isolated = slot.stage is Stage.TRAINING
            host.model.report(
                name,
                probe=0.05 if isolated else None,
                contribution=None if isolated else 0.05,
                gradients_finite=True,
                gradient_norm=0.3,
                gradient_health=1.0,
            )
    epoch = host.report.epoch
    seen, held_out = curve.training[epoch], curve.validation[epoch]
    host.report = EpochReport(epoch + 1, 1.5, seen, 2.3 * (1.0 - held_out), held_out, 1.0, None)


@dataclass
class Decided:
    """For one host, epoch by epoch."""

    words: list[str] = field(default_factory=list)
    probabilities: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)


def decisions(hosts: list[LoopHost], curves: list[Curve]) -> list[Decided]:
    """What the shipped controller decides for these hosts, side by side in one batch."""
    shipped = Controller.load(SHIPPED)
    observer = Observer(GrowthSpace.covering(hosts), len(hosts), decisions=shipped.card.decisions)
    policy = shipped.policy(observer.space)
    state = ActorState.initial(policy, len(hosts), policy.device)
    for index, host in enumerate(hosts):
        observer.begin(index, host, horizon=20)
    decided = [Decided() for _ in hosts]
    done = [LifecycleOp.WAIT] * len(hosts)
    for _ in curves[0].validation:
        for index, (host, curve) in enumerate(zip(hosts, curves, strict=True)):
            pass_epoch(host, curve)
            observer.record(index, host, done[index])
        observer.observe()
        mask = torch.from_numpy(observer.masks())
        chosen, evaluation, value, hidden = policy.get_action_batch(observer.flat, mask, state)
        state.hidden, state.previous_action = hidden, chosen
        for index, host in enumerate(hosts):
            action = decode(chosen[index].tolist(), observer.space, host.slot_config, host.cards)
            host.model.execute(action)
            host.model.tick()
            decided[index].words.append(described(action))
            decided[index].probabilities.append(evaluation.log_prob[index].sum().exp().item())
            decided[index].values.append(value[index].item())
            done[index] = action.op
    return decided


@pytest.mark.parametrize("curve", [SHUFFLED, DIGITS], ids=["shuffled", "digits"])
@pytest.mark.parametrize("widths", [(8, 16), (5, 7, 7, 7, 3, 3, 2)], ids=["fewer slots", "more slots"])
def test_company_changes_nothing(widths: tuple[int, ...], curve: Curve) -> None:
    def company() -> LoopHost:
        return untrained(FEW_AND_NOISY, *widths, blueprints=["norm", "lora*"])

    (alone,) = decisions([untrained(curve, 8, 16, 16)], [curve])
    beside, _ = decisions([untrained(curve, 8, 16, 16), company()], [curve, FEW_AND_NOISY])
    _, after = decisions([company(), untrained(curve, 8, 16, 16)], [FEW_AND_NOISY, curve])
    assert any(word.startswith("germinate") for word in alone.words)
    for other in (beside, after):
        assert other.words == alone.words
        assert other.probabilities == pytest.approx(alone.probabilities, abs=1e-5)
        assert other.values == pytest.approx(alone.values, abs=1e-5)


MIXERS = [
    "germinate mixer at blocks.2",
    "germinate mixer at blocks.1",
    "advance blocks.1",
    "advance blocks.2",
]


@pytest.mark.parametrize(
    ("curve", "first", "expected", "sure"),
    [
        (SHUFFLED, 4, MIXERS, (0.803, 0.726, 0.521, 0.897)),
        (DIGITS, 7, MIXERS, (0.476, 0.516, 0.581, 0.735)),
        (FEW_AND_NOISY, 4, ["wait"] * 4, (0.822, 0.873, 0.863, 0.734)),
    ],
    ids=["shuffled", "digits", "few and noisy"],
)
def test_the_shipped_one_decides_as_it_did(
    curve: Curve, first: int, expected: list[str], sure: tuple[float, ...]
) -> None:
    """A change of what it sees, or of how it answers, shows here; it then needs another name, trained anew."""
    (decided,) = decisions([untrained(curve, 8, 16, 16)], [curve])
    there = slice(first - 1, first - 1 + len(expected))
    assert decided.words[there] == expected
    assert set(decided.words[: there.start] + decided.words[there.stop :]) == {"wait"}
    assert decided.probabilities[there] == pytest.approx(sure, abs=2e-3)
