"""A base with adapters loaded side by side: one of them at work, or none."""

import copy
import os
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from esper.kasmina.adapters import AdapterError, ReadAdapter
from esper.kasmina.blueprints.registry import OutputForm
from esper.kasmina.merging import merge_forms, parallel_forms
from esper.kasmina.model import GrowingModel
from esper.kasmina.persistence import unique_tensors
from esper.kasmina.seed import Seed
from esper.kasmina.tree import names_a_seed


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
        for name in tensors.keys() - set(self._names):
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
