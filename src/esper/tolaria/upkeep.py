"""Ways to keep a network able to learn while its data change, without growing it: rivals from the literature.

All of them work on a plain network that trains, by any optimiser. `before_step` is called between backward and each
update, `maintain` every so many updates, with samples of now; both write in place, so captured programs stay valid.

    L2Init              a pull towards the initial weights (Kumar, Marklund and Van Roy 2023)
    ShrinkAndPerturb    weights shrunk, and new initial ones added (Ash and Adams 2020)
    ContinualBackprop   a few units of the least use begin anew all the time (Dohare et al. 2024)
    ReDo                dormant units begin anew (Sokar et al. 2023)
    Reset               the whole network, or its last layer, begins anew when it is told to
"""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from esper.tolaria.engine.host import derived_seed

Layer = nn.Linear | nn.Conv1d | nn.Conv2d
_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d)
_NORMS = (nn.GroupNorm, nn.LayerNorm, nn.BatchNorm1d, nn.BatchNorm2d)


@dataclass(frozen=True, slots=True)
class Units:
    """The units of one hidden layer: what makes them, what scales them, and what reads them."""

    incoming: Layer
    norm: nn.Module | None
    """A norm over them with a scale and a shift each, if there is one."""
    outgoing: Layer

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.incoming.weight)


def hidden_units(network: nn.Module) -> list[Units]:
    """The hidden layers of a network whose layers read one another in the order of its modules.

    Raises ValueError where a layer does not read as many units as the one before it has.
    """
    parts = [part for part in network.modules() if isinstance(part, (*_LAYERS, *_NORMS))]
    places = [place for place, part in enumerate(parts) if isinstance(part, _LAYERS)]
    found = []
    for here, there in pairwise(places):
        incoming, outgoing = parts[here], parts[there]
        assert isinstance(incoming, _LAYERS)
        assert isinstance(outgoing, _LAYERS)
        if outgoing.weight.shape[1] != len(incoming.weight):
            raise ValueError(
                f"a {type(outgoing).__name__} reads {outgoing.weight.shape[1]} units, and the "
                f"{type(incoming).__name__} before it has {len(incoming.weight)}: units can be begun anew only where "
                "each layer reads the one before it"
            )
        norms = [part for part in parts[here + 1 : there] if getattr(part, "weight", None) is not None]
        found.append(Units(incoming, norms[0] if norms else None, outgoing))
    return found


def fresh_weights(network: nn.Module, seed: int) -> list[tuple[nn.Module, nn.Parameter, Tensor]]:
    """(layer or norm, its parameter, a new initial value), drawn from the rng seed by each layer's own rule."""
    drawn: list[tuple[nn.Module, nn.Parameter, Tensor]] = []
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        for part in network.modules():
            if isinstance(part, (*_LAYERS, *_NORMS)):
                own = dict(part.named_parameters(recurse=False))
                twin = copy.copy(part)  # on the CPU: the same values on every device
                twin._parameters = {
                    name: nn.Parameter(torch.empty_like(own[name], device="cpu")) if name in own else None
                    for name in part._parameters
                }
                twin.reset_parameters()
                new = dict(twin.named_parameters(recurse=False))
                drawn += [
                    (part, weight, new[name].detach().to(weight.device)) for name, weight in own.items()
                ]
    return drawn


class Upkeep:
    """What is done to a network that trains. This one does nothing."""

    def begin(self, network: nn.Module, optimizer: Optimizer, *, seed: int) -> None:
        """Take over a network with its initial weights; the rng seed is for all that is drawn later."""
        self.network, self.optimizer, self.calls = network, optimizer, 0
        self.seed = derived_seed(seed, "upkeep")

    def before_step(self) -> None:
        """Change the gradients, before each update; on CUDA this is captured."""

    def maintain(self, inputs: Tensor, *, changed: bool = False) -> None:
        """Change the weights, every so many updates.

        inputs   (sample, ...) of now
        changed  whether a change of the data was noticed
        """
        del inputs, changed


@dataclass
class L2Init(Upkeep):
    """Adds `strength` (w - w_0) to each gradient."""

    strength: float

    def begin(self, network: nn.Module, optimizer: Optimizer, *, seed: int) -> None:
        super().begin(network, optimizer, seed=seed)
        self._weights = list(network.parameters())
        self._initial = [weight.detach().clone() for weight in self._weights]

    @torch.no_grad()
    def before_step(self) -> None:
        trained = [
            (weight.grad, weight, start)
            for weight, start in zip(self._weights, self._initial, strict=True)
            if weight.grad is not None
        ]
        gradients, weights, starts = map(list, zip(*trained, strict=True))
        torch._foreach_add_(gradients, torch._foreach_sub(weights, starts), alpha=self.strength)


@dataclass
class ShrinkAndPerturb(Upkeep):
    """Makes the weights and biases of layers (1 - shrink) w + noise w_new, with new initial ones each time."""

    shrink: float
    noise: float
    every: int = 1
    """Calls from one time to the next."""

    @torch.no_grad()
    def maintain(self, inputs: Tensor, *, changed: bool = False) -> None:
        del inputs, changed
        self.calls += 1
        if self.calls % self.every:
            return
        for part, weight, new in fresh_weights(self.network, self.seed + self.calls):
            if isinstance(part, _LAYERS):
                weight.mul_(1.0 - self.shrink).add_(new, alpha=self.noise)


@dataclass
class ContinualBackprop(Upkeep):
    """Begins a share `rate` of the mature units of each layer anew at each call, those of the least use.

    Use is the running mean of |output| times the sum of |outgoing weights|.
    """

    rate: float
    maturity: int = 100
    """Calls before a new unit may be begun anew."""
    decay: float = 0.99
    _use: list[Tensor] = field(default_factory=list, repr=False)
    _ages: list[Tensor] = field(default_factory=list, repr=False)
    _due: list[float] = field(default_factory=list, repr=False)

    def begin(self, network: nn.Module, optimizer: Optimizer, *, seed: int) -> None:
        super().begin(network, optimizer, seed=seed)
        self._units = hidden_units(network)
        self._use = [torch.zeros(units.count) for units in self._units]
        self._ages = [torch.zeros(units.count) for units in self._units]
        self._due = [0.0] * len(self._units)

    @torch.no_grad()
    def maintain(self, inputs: Tensor, *, changed: bool = False) -> None:
        del changed
        self.calls += 1
        for place, (units, size) in enumerate(
            zip(self._units, mean_outputs(self.network, self._units, inputs), strict=True)
        ):
            use, ages = self._use[place], self._ages[place]
            now = size * _by_input(units.outgoing).abs().sum(1).cpu()
            ages += 1
            use.mul_(self.decay).add_(now, alpha=1.0 - self.decay)
            mature = ages > self.maturity
            self._due[place] += self.rate * int(mature.sum())
            count = int(self._due[place])
            if count:
                self._due[place] -= count
                corrected = use / (1.0 - self.decay**ages)  # as in Adam: young units have short means
                corrected[~mature] = torch.inf
                chosen = corrected.argsort()[:count]
                begin_anew(units, chosen, self.optimizer, self.seed + 7919 * self.calls + place)
                use[chosen], ages[chosen] = 0.0, 0.0


@dataclass
class ReDo(Upkeep):
    """Begins units anew whose mean |output| is at most `threshold` times the mean of their layer."""

    threshold: float
    every: int = 1
    """Calls from one look to the next."""

    @torch.no_grad()
    def maintain(self, inputs: Tensor, *, changed: bool = False) -> None:
        del changed
        self.calls += 1
        if self.calls % self.every:
            return
        layers = hidden_units(self.network)
        for place, (units, size) in enumerate(
            zip(layers, mean_outputs(self.network, layers, inputs), strict=True)
        ):
            dormant = torch.nonzero(size <= self.threshold * size.mean()).flatten()
            if len(dormant):
                begin_anew(units, dormant, self.optimizer, self.seed + 7919 * self.calls + place)


@dataclass
class Reset(Upkeep):
    """Begins anew when a change is noticed: everything, or the last layer alone."""

    only_last: bool = False

    @torch.no_grad()
    def maintain(self, inputs: Tensor, *, changed: bool = False) -> None:
        del inputs
        if not changed:
            return
        self.calls += 1
        drawn = fresh_weights(self.network, self.seed + self.calls)
        last = [part for part, _, _ in drawn if isinstance(part, _LAYERS)][-1]
        for part, weight, new in drawn:
            if part is last or not self.only_last:
                weight.copy_(new)
                forget_moments(self.optimizer, weight, ...)


# Units, one by one


def mean_outputs(network: nn.Module, layers: Sequence[Units], inputs: Tensor) -> list[Tensor]:
    """For each layer (unit,): the mean of |output after norm and ReLU| over samples and positions, on the CPU."""
    found: dict[int, Tensor] = {}
    with _watching(layers, found):
        network(inputs)
    return [found[place].cpu() for place in range(len(layers))]


@contextmanager
def _watching(layers: Sequence[Units], found: dict[int, Tensor]) -> Iterator[None]:
    def watch(place: int) -> object:
        def hook(module: nn.Module, arguments: object, output: Tensor) -> None:
            del module, arguments
            channels = output.movedim(1, -1) if output.ndim > 2 else output
            found[place] = channels.relu().flatten(0, -2).mean(0)

        return hook

    handles = [
        (units.norm or units.incoming).register_forward_hook(watch(place))  # type: ignore[arg-type]
        for place, units in enumerate(layers)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def begin_anew(units: Units, chosen: Tensor, optimizer: Optimizer, seed: int) -> None:
    """New incoming weights for these units (unit,), outgoing ones of 0: the output stays, but for what they gave."""
    chosen = chosen.to(units.incoming.weight.device)
    for _, weight, new in fresh_weights(units.incoming, seed):
        weight[chosen] = new[chosen]
        forget_moments(optimizer, weight, chosen)
    if units.norm is not None:
        for weight, value in zip(units.norm.parameters(), (1.0, 0.0), strict=False):
            weight[chosen] = value
            forget_moments(optimizer, weight, chosen)
    units.outgoing.weight[:, chosen] = 0.0
    forget_moments(optimizer, units.outgoing.weight, (slice(None), chosen))


def forget_moments(optimizer: Optimizer, weight: Tensor, where: object) -> None:
    """Zero what the optimiser remembers of some entries of a weight; its count of steps stays."""
    for value in optimizer.state.get(weight, {}).values():
        if isinstance(value, Tensor) and value.shape == weight.shape:
            value[where] = 0.0  # type: ignore[index]


def _by_input(layer: Layer) -> Tensor:
    """(unit that is read, all its outgoing weights)"""
    return layer.weight.transpose(0, 1).flatten(1)
