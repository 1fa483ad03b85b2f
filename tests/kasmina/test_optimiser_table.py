"""Every optimiser in every operation, as the page's table says; and the rule behind it, on optimisers of our own."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from esper.leyline import Layout
from kasmina.optimiser_table import OPERATIONS, OPTIMISERS, REFUSED, Life, table
from tiny import SLOT, tiny_model

PAGE = Path(__file__).parents[2] / "docs" / "optimisers.md"


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("optimiser", OPTIMISERS)
def test_operation(optimiser: str, operation: str) -> None:
    OPERATIONS[operation](OPTIMISERS[optimiser])


@pytest.mark.parametrize("optimiser", REFUSED)
def test_refusal(optimiser: str) -> None:
    model = tiny_model(Layout.FLAT, 5)
    before = torch.get_rng_state()
    optimizer = REFUSED[optimiser][0](list(model.parameters()))
    with pytest.raises(
        TypeError, match=f"optimizer {type(optimizer).__name__} cannot train a network that grows: "
    ):
        model.attach(optimizer)
    assert model.care is None
    assert not optimizer._optimizer_step_pre_hooks
    assert torch.equal(torch.get_rng_state(), before)


def test_the_page_has_this_table() -> None:
    assert table() in PAGE.read_text(), f"docs/optimisers.md needs this table:\n{table()}"


def test_muon_is_refused_with_the_way_out() -> None:
    model = tiny_model(Layout.FLAT, 5)
    matrices = [parameter for parameter in model.parameters() if parameter.ndim == 2]
    rest = [parameter for parameter in model.parameters() if parameter.ndim != 2]
    with pytest.raises(TypeError, match=r"if another optimizer trains the rest of the host, pass that one"):
        model.attach(torch.optim.Muon(matrices))
    model.attach(torch.optim.AdamW(rest))
    model.germinate(SLOT, "mlp")


class _Counting(SGD):
    """SGD that counts its steps in tensors of its own, draws from its own generator, and holds a lock."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=0.1)
        self.count, self.nested = torch.zeros(()), {"counts": [torch.zeros(())], "lock": threading.Lock()}
        self.generator = torch.Generator().manual_seed(1)
        self.add = self._add

    def _add(self) -> None:
        self.count.add_(1.0)
        self.nested["counts"][0].add_(1.0)  # type: ignore[index]
        torch.rand(3, generator=self.generator)

    def step(self, closure: Any = None) -> Any:
        self.add()
        return super().step(closure)


def test_what_an_optimiser_holds_is_not_touched_by_the_trial() -> None:
    model = tiny_model(Layout.FLAT, 5)
    optimizer = _Counting(model.parameters())
    drawn = optimizer.generator.get_state()
    model.attach(optimizer)
    assert optimizer.count.item() == 0.0
    assert optimizer.nested["counts"][0].item() == 0.0  # type: ignore[index]
    assert torch.equal(optimizer.generator.get_state(), drawn)


def test_what_is_trained_is_not_touched_by_the_trial() -> None:
    life = Life.begin(OPTIMISERS["Adam"])
    life.train(2)
    life.model.detach()
    before, grads = life.values(), [p.grad for p in life.model.parameters()]
    state = {p: dict(kept) for p, kept in life.optimizer.state.items()}
    life.model.attach(life.optimizer)
    assert all(torch.equal(one, other) for one, other in zip(life.values(), before, strict=True))
    assert [p.grad for p in life.model.parameters()] == grads
    assert life.optimizer.state == state


class Own(Optimizer):
    """Gradient descent that somebody wrote."""

    def __init__(self, params: Any, lr: float = 0.1, **options: object) -> None:
        super().__init__(params, {"lr": lr, **options})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        del closure
        for group in self.param_groups:
            self.begin_group(group)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.update(parameter, parameter.grad, group)

    def begin_group(self, group: dict[str, Any]) -> None:
        """Before the parameters of a group."""

    def update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        """One parameter."""
        parameter.sub_(gradient, alpha=group["lr"])


class CountsSteps(Own):
    """Its groups count: a new group begins at 1, whatever its part has reached."""

    def begin_group(self, group: dict[str, Any]) -> None:
        group["count"] = group.get("count", 0) + 1

    def update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        parameter.sub_(gradient, alpha=group["lr"] / group["count"])


class NormsTogether(Own):
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        gradients = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
        for gradient in gradients:
            gradient.div_(norm)
        super().step(closure)


class StateOfItsOwn(Own):
    def begin_group(self, group: dict[str, Any]) -> None:
        self.state["steps"] = {"count": len(group)}  # type: ignore[index]


class Histories(Own):
    def update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        super().update(parameter, gradient, group)
        self.state[parameter].setdefault("history", []).append(gradient)


class StateAtBirth(Own):
    def __init__(self, params: Any) -> None:
        super().__init__(params)
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["sum"] = torch.zeros_like(parameter)

    def update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        super().update(parameter, self.state[parameter]["sum"].add_(gradient), group)


class Wraps(Own):
    def __init__(self, params: Any) -> None:
        params = list(params)
        super().__init__(params)
        self.inner = SGD(params, lr=0.1)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("kind", [Own, CountsSteps])
def test_one_of_somebodys_own(kind: type[Own], operation: str) -> None:
    OPERATIONS[operation](kind)


def test_a_new_group_counts_from_its_own_beginning() -> None:
    life = Life.begin(CountsSteps)
    life.train(5)
    life.model.germinate(SLOT, "mlp")
    life.train(2)
    assert [group["count"] for group in life.optimizer.param_groups] == [7, 2]


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (NormsTogether, "updates parameters together"),
        (StateOfItsOwn, "its state is not kept per parameter: it has an entry 'steps'"),
        (Histories, "its state 'history' is a list"),
        (StateAtBirth, "makes state when it is made itself"),
        (Wraps, r"wraps another one \(inner: SGD\)"),
    ],
)
def test_what_does_not_update_each_parameter_by_itself_is_refused(kind: type[Own], reason: str) -> None:
    model = tiny_model(Layout.FLAT, 5)
    with pytest.raises(TypeError, match=reason):
        model.attach(kind(list(model.parameters())))


def test_a_group_without_a_rate_is_refused() -> None:
    model = tiny_model(Layout.FLAT, 5)
    optimizer = Own([{"params": list(model.parameters()), "lr": None}])
    with pytest.raises(TypeError, match="its group 0 has lr=None, and a seed learns at a multiple of that"):
        model.attach(optimizer)


def test_what_cannot_be_written_is_named_on_saving(tmp_path: Path) -> None:
    model = tiny_model(Layout.FLAT, 5)
    model.attach(Own(list(model.parameters()), limit=float("inf")))
    with pytest.raises(ValueError, match="the attached optimizer cannot be saved: its option limit is inf"):
        model.save(tmp_path / "grown.safetensors")


def test_state_of_another_shape_is_checked_before_it_is_loaded(tmp_path: Path) -> None:
    """Adafactor keeps rows and columns: of a host with other widths they do not fit."""
    from safetensors import safe_open
    from safetensors.torch import save_file

    life = Life.begin(OPTIMISERS["Adafactor"])
    life.train(1)
    path = tmp_path / "grown.safetensors"
    life.model.save(path)
    with safe_open(path, framework="pt") as file:
        metadata, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    name = next(name for name in tensors if name.endswith("row_var"))
    tensors[name] = torch.zeros(7)
    save_file(tensors, path, metadata=metadata)
    with pytest.raises(ValueError, match=r"row_var is \(7,\) torch.float32"):
        Life.begin(OPTIMISERS["Adafactor"]).model.load(path)


def test_state_keeps_its_dtype_through_a_file(tmp_path: Path) -> None:
    """torch's own load_state_dict makes it the parameter's."""

    class Exact(Own):
        def update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
            total = self.state[parameter].setdefault("sum", torch.zeros_like(parameter, dtype=torch.float64))
            super().update(parameter, total.add_(gradient).to(parameter.dtype), group)

    life, again = Life.begin(Exact), Life.begin(Exact)
    life.train(2)
    life.model.save(tmp_path / "grown.safetensors")
    again.model.load(tmp_path / "grown.safetensors")
    kept = [again.optimizer.state[p]["sum"] for p in again.model.parameters()]
    assert all(tensor.dtype == torch.float64 for tensor in kept)
    expected = [life.optimizer.state[p]["sum"] for p in life.model.parameters()]
    assert all(torch.equal(one, other) for one, other in zip(kept, expected, strict=True))


def test_a_seed_of_a_part_without_parameters_joins_the_first_group() -> None:
    import esper

    model = esper.wrap(nn.Sequential(nn.Linear(3, 5), nn.Tanh()), ["1"], torch.randn(2, 3))
    groups: list[dict[str, Any]] = [{"params": []}, {"params": list(model.parameters()), "lr": 0.2}]
    optimizer = SGD(groups, lr=0.1)
    model.attach(optimizer)
    model.germinate("1", "mlp")
    optimizer.step()
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.2, pytest.approx(0.3)]
