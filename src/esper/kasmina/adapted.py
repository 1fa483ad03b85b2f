"""A base with adapters loaded side by side, one of them at work or none; low rank merged into it, or as PEFT's files.

A seed of low rank behind a linear layer is a branch beside it, W x + B A x. If it maps the layer's output h = W x + b
through two pointwise maps, y = h + alpha s * V U h, it is a change of the layer itself, of the rank of those maps:

    B = alpha s * V,  A = U W,  y = (W + B A) x + (b + B U b)

The same holds for a convolution, whose output channels are linear in its kernel.
"""

import copy
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

import torch
from pydantic import JsonValue
from safetensors.torch import save_file
from torch import Tensor, nn

from esper.kasmina.adapters import AdapterError, ReadAdapter, brought_along, require_frozen, shown_seeds
from esper.kasmina.blueprints.registry import OutputForm
from esper.kasmina.describing import unique_tensors
from esper.kasmina.model import GrowingModel
from esper.kasmina.replicas import whole_copy
from esper.kasmina.seed import Seed
from esper.kasmina.tree import names_a_seed
from esper.leyline import Composition
from esper.leyline.files import write_atomically, write_json


def load_adapter(
    base: nn.Module, folder: str | os.PathLike[str], *, name: str | None = None
) -> "AdaptedModel":
    """Put an adapter that `Grower.save_adapter` wrote onto the base it was made for, and to work.

        model = esper.load_adapter(base, "adapters/noise")
        esper.load_adapter(model, "adapters/blur")  # side by side; blur is at work now
        model.switch("noise")

    base    the plain module, which is hooked and not copied; or what this function returned, for one more adapter
    folder  with adapter.json and adapter.safetensors
    name    what to call it; by default the folder's name

    Another base, another width and a damaged file raise `AdapterError`, and the base is as before.
    """
    adapter = ReadAdapter(folder)
    if isinstance(base, GrowingModel) or any(names_a_seed(key) for key in base.state_dict()):
        raise AdapterError(
            "base grows, or is a copy of a model that does: give the plain module, as it was before it was wrapped"
        )
    name = name or Path(folder).resolve().name
    model = base if isinstance(base, AdaptedModel) else None
    if model is not None and name in model.names:
        raise AdapterError(f"an adapter named {name!r} is loaded already: pass name= for another")
    if model is None:
        seeds = adapter.fit(base)
        model = AdaptedModel(base)
    else:
        with model.switched(None):
            seeds = adapter.fit(model.base)
    model._add(name, adapter, seeds)
    model.switch(name)
    return model


class AdaptedModel(nn.Module):
    """A base and its adapters, of which one is at work; calling it calls the base. Made by `esper.load_adapter`."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base = base
        self.active: str | None = None
        """The adapter at work; None is the base alone."""
        self._adapters: dict[str, _Adapter] = {}
        self._own = _Adapter({}, {}, {})  # the base's tensors that adapters replace, as they were
        self._places: dict[str, _Place] = {}
        self.held = nn.ModuleList([self._own])
        """The seeds and tensors of all adapters, in the order they were loaded, after the base's own."""

    def forward(self, *args: object, **kwargs: object) -> object:
        """Call the base, through the adapter at work."""
        return self.base(*args, **kwargs)

    @property
    def names(self) -> tuple[str, ...]:
        """The adapters that are loaded."""
        return tuple(self._adapters)

    @property
    def cards(self) -> dict[str, dict[str, object]]:
        """Adapter -> the card that was saved with it."""
        return {name: adapter.card for name, adapter in self._adapters.items()}

    def switch(self, name: str | None) -> None:
        """Put another adapter to work; None is the base alone. What was trained in the one before stays with it."""
        if name is not None and name not in self._adapters:
            raise AdapterError(f"no adapter is named {name!r}; loaded: {', '.join(self._adapters) or 'none'}")
        tensors = unique_tensors(self.base)
        self._at_work().take(tensors)
        self._own.give(tensors)
        self.active = name
        self._at_work().give(tensors)
        for place in self._places.values():
            place.seed = None
        for slot, seed in self._at_work().seeds.items():
            self._places[slot].seed = seed

    def switched(self, name: str | None) -> "_Switched":
        """A context in which another adapter is at work."""
        return _Switched(self, name)

    def merge(self) -> nn.Module:
        """A copy of the base, in its own class, with the adapter at work merged into its weights.

        A seed merges where it is of low rank behind a Linear or a convolution; others are refused by name.
        """
        twin = copy.deepcopy(self)
        forms = parallel_forms(twin.base, twin._at_work().seeds)
        twin._let_go()
        merge_forms(twin.base, forms)
        return twin.base

    def unload(self) -> nn.Module:
        """Take all adapters off; returns the base as it was before the first."""
        self.switch(None)
        self._let_go()
        return self.base

    def print_trainable_parameters(self) -> None:
        """Print how many parameters require gradients, of how many: the base with the adapter at work."""
        print(describe_trainable(self.base, *self._at_work().seeds.values()))

    def _at_work(self) -> "_Adapter":
        return self._own if self.active is None else self._adapters[self.active]

    def _add(self, name: str, adapter: ReadAdapter, seeds: Mapping[str, Seed]) -> None:
        modules = dict(self.base.named_modules(remove_duplicate=False))
        with self.switched(None):
            tensors = unique_tensors(self.base)
            self._own.hold({key: tensors[key].detach().clone() for key in adapter.host})
        brought = {key: value.to(tensors[key].device) for key, value in adapter.host.items()}
        self._adapters[name] = _Adapter(seeds, brought, adapter.record.card)
        self.held.append(self._adapters[name])
        for slot, saved in adapter.record.slots.items():
            if slot not in self._places:
                self._places[slot] = _Place(modules[slot], saved.form)

    def _let_go(self) -> None:
        for place in self._places.values():
            place.hook.remove()
        self._places = {}


class _Switched:
    def __init__(self, model: AdaptedModel, name: str | None) -> None:
        self._model, self._name, self._before = model, name, model.active

    def __enter__(self) -> None:
        self._model.switch(self._name)

    def __exit__(self, *_: object) -> None:
        self._model.switch(self._before)


class _Adapter(nn.Module):
    """The seeds of one adapter by slot, and the base's tensors that it replaces by name."""

    def __init__(
        self, seeds: Mapping[str, Seed], tensors: Mapping[str, Tensor], card: Mapping[str, object]
    ) -> None:
        super().__init__()
        self.seeds, self.card = dict(seeds), dict(card)
        self.grown = nn.ModuleList(self.seeds.values())  # names of slots hold dots, those of children may not
        self._names: list[str] = []
        self.hold(tensors)

    def hold(self, tensors: Mapping[str, Tensor]) -> None:
        """Keep these too; those that are kept already stay."""
        for name in sorted(tensors.keys() - set(self._names)):  # in every process the same place
            self.register_buffer(f"tensor_{len(self._names)}", tensors[name])
            self._names.append(name)

    @torch.no_grad()
    def take(self, tensors: Mapping[str, Tensor]) -> None:
        """Keep the values that the base has now."""
        for index, name in enumerate(self._names):
            self.get_buffer(f"tensor_{index}").copy_(tensors[name])

    @torch.no_grad()
    def give(self, tensors: Mapping[str, Tensor]) -> None:
        """Write what is kept into the base."""
        for index, name in enumerate(self._names):
            tensors[name].copy_(self.get_buffer(f"tensor_{index}"))


class _Place:
    """The forward hook behind one submodule: adds what the seed at work there says."""

    def __init__(self, module: nn.Module, form: OutputForm) -> None:
        self.form = form
        self.seed: Seed | None = None
        self.hook = module.register_forward_hook(self, with_kwargs=True)

    def __call__(
        self, module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object], output: object
    ) -> object:
        del module
        if self.seed is None:
            return None
        h = self.form.pick(output)
        return self.form.put_back(output, h + self.seed.alpha * self.seed(h, args, kwargs)[0])


def describe_trainable(*parts: nn.Module) -> str:
    """The parameters that require gradients, of all, as PEFT prints them; those that parts share count once."""
    parameters = {id(parameter): parameter for part in parts for parameter in part.parameters()}.values()
    trained = sum(parameter.numel() for parameter in parameters if parameter.requires_grad)
    total = sum(parameter.numel() for parameter in parameters)
    share = 100 * trained / total if total else 0.0
    return f"trainable params: {trained:,} || all params: {total:,} || trainable%: {share:.4f}"


# Low rank


LinearLayer = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d
_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(frozen=True, slots=True)
class ParallelForm:
    """A seed as a branch beside its layer, W x + B A x + bias."""

    down: Tensor
    """A: (rank, inputs), and behind them the positions of a convolution's kernel."""
    up: Tensor
    """B: (outputs, rank)."""
    bias: Tensor | None
    """(outputs,); None where the layer has none."""


@torch.no_grad()
def parallel_form(layer: LinearLayer, seed: Seed) -> ParallelForm:
    """The branch that computes what the seed adds behind the layer, at the alpha it has now; in float64."""
    first, second = (matrix.double() for matrix in _factors(seed))
    up = float(seed.alpha) * seed.scale.double().unsqueeze(1) * second  # (output, rank)
    down = torch.einsum("ro,o...->r...", first, layer.weight.double())
    bias = None if layer.bias is None else up @ (first @ layer.bias.double())
    return ParallelForm(down, up, bias)


def _factors(seed: Seed) -> tuple[Tensor, Tensor]:
    """U (rank, channel) and V (channel, rank) of a body that is two linear maps."""
    assert isinstance(seed.body, nn.Sequential)
    first, second = (part.weight for part in seed.body)
    assert isinstance(first, Tensor)
    assert isinstance(second, Tensor)
    return first.flatten(1), second.flatten(1)


def why_not_parallel(host: nn.Module, layer: nn.Module, seed: Seed) -> str | None:
    """Why a seed has no parallel form beside the submodule it grows behind; None where it has one."""
    if not _is_linear(layer):
        return f"it grows behind a {type(layer).__name__}, not a Linear or a convolution without groups"
    if not _is_low_rank(seed.body) or seed.reads_input:
        return f"a {seed.blueprint_name} is not two linear maps in a row, as lora and lora_large are"
    if seed.composition is not Composition.ADD:
        return f"its composition is {seed.composition.value}, which depends on the input, not add"
    if len(layer._forward_hooks) > 1 or layer._forward_pre_hooks:
        return "hooks of others on its layer change what goes in or comes out"
    owners = {
        id(part)
        for part in host.modules()
        if any(parameter is layer.weight for parameter in part._parameters.values())
    }
    if len(owners) > 1:
        return "the weight of its layer is shared with another module, which would change too"
    return None


def _is_linear(layer: nn.Module) -> TypeGuard[LinearLayer]:
    """A layer whose outputs are linear in its weight, and that no subclass makes something else of."""
    return type(layer) in _LAYERS and getattr(layer, "groups", 1) == 1


def _is_low_rank(body: nn.Module) -> bool:
    """Two linear maps of the channels in a row, without biases."""

    def pointwise(part: nn.Module) -> bool:
        return _is_linear(part) and part.bias is None and part.weight[0, 0].numel() == 1

    return type(body) is nn.Sequential and len(body) == 2 and all(map(pointwise, body))


def parallel_forms(host: nn.Module, seeds: dict[str, Seed]) -> dict[str, ParallelForm]:
    """Slot -> the parallel form of its seed; where any has none, the error names each."""
    layers = {name: host.get_submodule(name) for name in seeds}
    reasons = {name: why_not_parallel(host, layers[name], seed) for name, seed in seeds.items()}
    problems = [f"at {name!r} {reason}" for name, reason in reasons.items() if reason is not None]
    if problems:
        raise AdapterError(
            f"seeds that do not merge into their layers: {'; '.join(problems)}. export() makes a plain module of any"
        )
    forms = {}
    for name, seed in seeds.items():
        layer = layers[name]
        assert _is_linear(layer)
        forms[name] = parallel_form(layer, seed)
    return forms


@torch.no_grad()
def merge_forms(host: nn.Module, forms: dict[str, ParallelForm]) -> None:
    """Add each branch to the weights of the layer that it stands beside, in place."""
    for name, form in forms.items():
        layer = host.get_submodule(name)
        assert _is_linear(layer)
        change = torch.einsum("or,r...->o...", form.up, form.down)
        layer.weight.copy_(layer.weight.double() + change)
        if layer.bias is not None and form.bias is not None:
            layer.bias.copy_(layer.bias.double() + form.bias)


def merge(model: GrowingModel) -> nn.Module:
    """A copy of the host, in its own class, with the seeds that the output shows merged into its weights."""
    twin = whole_copy(model)
    forms = parallel_forms(twin.host, {name: seed for name, (_, seed) in shown_seeds(twin).items()})
    host = twin.unwrap()
    merge_forms(host, forms)
    return host


_PREFIX = "base_model.model."


def export_peft(model: GrowingModel, folder: str | os.PathLike[str], *, base_id: str | None = None) -> None:
    """Write `adapter_config.json` and `adapter_model.safetensors` to `folder`, made where it is missing.

    base_id  what `base_model_name_or_path` is to say; by default the name of the host's class

    Every seed that the output shows must have a parallel form (lora and lora_large behind a Linear or a convolution);
    modules of the host that were trained, and layers with running statistics, are `modules_to_save`.
    """
    model.replicas.rest()
    require_frozen(model.host)
    forms = parallel_forms(model.host, {name: seed for name, (_, seed) in shown_seeds(model).items()})
    if not forms:
        raise AdapterError("nothing has grown that PEFT could read: its LoRA needs a seed behind one layer")
    saved = _modules_to_save(model.host, forms)
    ranks = {name: form.up.shape[1] for name, form in forms.items()}
    usual = Counter(ranks.values()).most_common(1)[0][0]
    pattern: JsonValue = {f"^{re.escape(name)}": rank for name, rank in ranks.items() if rank != usual}
    config: dict[str, JsonValue] = {
        "peft_type": "LORA",
        "task_type": None,
        "base_model_name_or_path": base_id or type(model.host).__name__,
        "inference_mode": True,
        "r": usual,
        "lora_alpha": usual,  # PEFT scales by lora_alpha / r
        "lora_dropout": 0.0,
        "rank_pattern": pattern,
        "alpha_pattern": pattern,
        "target_modules": "|".join(
            map(re.escape, forms)
        ),  # as one pattern: names in a list match endings too
        "modules_to_save": list[JsonValue](saved) or None,
        "lora_bias": any(form.bias is not None for form in forms.values()),
        "bias": "none",
    }
    tensors = _tensors(model.host, forms, saved)
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    write_atomically(target / "adapter_model.safetensors", lambda partial: save_file(tensors, partial))
    write_json(target / "adapter_config.json", config)


def _modules_to_save(host: nn.Module, slots: Iterable[str]) -> list[str]:
    """The modules that hold what was trained of the host; PEFT must be able to name each, and it alone."""
    owners = sorted({name.rpartition(".")[0] for name in brought_along(host)})
    modules = [name for name, _ in host.named_modules(remove_duplicate=False)]
    for owner in owners:
        if not owner:
            raise AdapterError(
                "PEFT keeps trained modules whole, and the host itself holds a trained parameter: freeze it"
            )
        inside = next((slot for slot in slots if f"{slot}.".startswith(f"{owner}.")), None)
        if inside is not None:
            raise AdapterError(f"{owner} is trained and {inside} has a seed: PEFT keeps either, not both")
        other = next((name for name in modules if name != owner and name.endswith(owner)), None)
        if other is not None:
            raise AdapterError(
                f"PEFT finds modules_to_save by how their names end, and {other} ends as the trained {owner} does: "
                "rename one, or use save_adapter"
            )
    return owners


def _tensors(host: nn.Module, forms: dict[str, ParallelForm], saved: Iterable[str]) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    biased = any(form.bias is not None for form in forms.values())
    for name, form in forms.items():
        weight = host.get_submodule(name).weight
        assert isinstance(weight, Tensor)
        up = form.up.view(*form.up.shape, *([1] * (weight.ndim - 2)))  # a kernel of one position
        parts = {"lora_A.weight": form.down, "lora_B.weight": up}
        if biased:
            parts["lora_B.bias"] = form.bias if form.bias is not None else torch.zeros(len(form.up))
        tensors |= {f"{_PREFIX}{name}.{part}": value.to(weight.dtype) for part, value in parts.items()}
    for owner in saved:
        for part, value in host.get_submodule(owner).state_dict().items():
            tensors[f"{_PREFIX}{owner}.{part}"] = value
    return {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
