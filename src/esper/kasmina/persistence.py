"""Saving a growing model: one safetensors file that holds weights, topology, lifecycle and optimiser state.

The tensors are under `model/...` and `optimizer/...`; everything else is one JSON document in the file's metadata.
Nothing in it can execute, and a file is checked in full before the model is touched.
"""

import json
import os
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from pathlib import Path

import torch
from pydantic import JsonValue, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from esper.kasmina.describing import (
    VERSION,
    GroupRecord,
    ModelRecord,
    OptimizerRecord,
    describe,
    unique_tensors,
)
from esper.kasmina.model import GrowingModel
from esper.kasmina.optimisers import PARAMETERS, OptimiserCare, state_of
from esper.kasmina.replicas import fill
from esper.kasmina.schedules import Group
from esper.kasmina.seed import Seed, bear_seed, birth_randomness
from esper.kasmina.slot import Slot, SlotRecord
from esper.kasmina.stage_machine import GrowthRules
from esper.kasmina.tree import names_a_seed
from esper.leyline import SlotConfig, Stage
from esper.leyline.errors import EsperError, first_finding
from esper.leyline.files import write_atomically


class ModelFileError(EsperError, ValueError):
    """The file is damaged, of another version, or belongs to another model."""


def save(model: GrowingModel, path: str | os.PathLike[str]) -> None:
    """Write the model, and the attached optimiser if there is one, to `path` (.safetensors), atomically."""
    if not Path(path).parent.is_dir():
        raise ValueError(f"path is {str(path)!r}; there is no folder {str(Path(path).parent)!r}")
    record, tensors = describe(model)
    metadata = {"esper": record.model_dump_json()}
    write_atomically(Path(path), lambda partial: save_file(tensors, partial, metadata=metadata))


def load(model: GrowingModel, path: str | os.PathLike[str]) -> None:
    """Bring a wrap of the same host to the state in `path`; continued training is the same bit for bit.

    Seeds that grow in it now leave, with what the optimiser keeps of them, and those of the file come. With an
    optimiser attached, its state is restored too. A scheduler's own state is its `state_dict`, as always: load it
    after this. If anything does not fit, `ModelFileError` says what, and the model is as before.
    """
    record, tensors = _read(Path(path))
    reinstate(model, record, tensors, str(path))


def reinstate(
    model: GrowingModel,
    record: ModelRecord,
    tensors: Mapping[str, Tensor],
    origin: str = "the saved state",
    *,
    optimizer: bool = True,
) -> None:
    """The same from what `describe` gave; `origin` is named in errors.

    optimizer  whether the attached one is brought back too; else it keeps its state and takes the seeds in blank
    """
    model.replicas.rest()
    seeds = _Check(model, record, tensors, origin, optimizer=optimizer).seeds
    for slot in model.slots.values():
        if model.care is not None:
            model.care.forget(slot)
        slot.clear()
    for name, saved in record.slots.items():
        slot, seed = model.slots[name], seeds.get(name)
        if seed is not None:
            model.replicas.adopt(seed)
            slot.plant(seed)
            seed.requires_grad_(not saved.fading)
        slot.restore(saved, GrowthRules(**record.rules))
        slot.non_finite.copy_(torch.tensor(saved.non_finite))
    model.growth_seed = record.growth_seed
    model.isolation_penalty = record.isolation_penalty
    with torch.no_grad():  # not inference_mode: writes parameters that are trained
        for name, tensor in unique_tensors(model).items():
            fill(tensor, tensors[f"model/{name}"])
    for slot in model.slots.values():
        slot.sync_seed()
    if model.care is not None and record.optimizer is not None and optimizer:
        _restore_optimizer(model, model.care, record, record.optimizer, tensors)
    elif model.care is not None:
        for slot in model.slots.values():
            _adopt(model.care, slot)


def _adopt(care: OptimiserCare, slot: Slot) -> None:
    """Give the optimiser what it has to learn of a slot."""
    if slot.stage is Stage.FOSSILIZED:
        care.settle(slot)
    elif slot.seed is not None and not slot.life.fading:
        care.adopt(slot)


# Reading


def _read(path: Path) -> tuple[ModelRecord, dict[str, Tensor]]:
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise
    except (SafetensorError, OSError) as error:
        raise ModelFileError(f"{path} is not a whole safetensors file: {error}") from None
    if "esper" not in metadata:
        raise ModelFileError(f"{path} was not written by Esper: its metadata has no 'esper' entry")
    try:
        document = json.loads(metadata["esper"])
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path} holds damaged metadata: {error}") from None
    version = document.get("version") if isinstance(document, dict) else None
    if version != VERSION or isinstance(version, bool):
        raise ModelFileError(f"{path} has version {version!r}; this Esper reads version {VERSION}")
    try:
        return ModelRecord.model_validate(document), tensors
    except ValidationError as error:
        raise ModelFileError(f"{path}: {first_finding(error)}") from None


class _Check:
    """Everything that could go wrong, before anything is changed; and the seeds that will be planted."""

    def __init__(
        self,
        model: GrowingModel,
        record: ModelRecord,
        tensors: Mapping[str, Tensor],
        path: str,
        *,
        optimizer: bool,
    ) -> None:
        self.model, self.record, self.tensors, self.path = model, record, tensors, path
        try:
            model.slot_config.require_same(SlotConfig(tuple(record.slots)), ours="the model", theirs=path)
            rules = GrowthRules(**record.rules)
            if sum(saved.stage.is_live for saved in record.slots.values()) > rules.max_live_seeds:
                raise ValueError(f"{path}: more seeds are live than max_live_seeds={rules.max_live_seeds}")
        except (ValueError, TypeError) as error:
            raise ModelFileError(str(error)) from None
        self.seeds = {
            name: self._build(name, saved) for name, saved in record.slots.items() if saved.blueprint
        }
        self._check_model()
        if model.care is not None and optimizer:
            self._check_optimizer(model.care)

    def _build(self, name: str, saved: SlotRecord) -> Seed:
        slot = self.model.slots[name]
        if saved.blueprint not in slot.blueprints:
            raise ModelFileError(
                f"{self.path}: slot {name!r} holds blueprint {saved.blueprint!r}, not offered here; offered: "
                f"{', '.join(slot.blueprints)}"
            )
        assert saved.style is not None  # of a slot with a seed, as its record has checked
        device, dtype = slot.placement()
        with birth_randomness(0, name, saved.births):  # drawn and then overwritten
            return bear_seed(
                slot.blueprints[saved.blueprint],
                slot.site,
                saved.style.composition,
                device=device,
                dtype=dtype,
            )

    def _check_model(self) -> None:
        """Exactly the model's tensors and its seeds', each of the shape and dtype it has there."""
        expected = {name: t for name, t in unique_tensors(self.model).items() if not names_a_seed(name)}
        for name, seed in self.seeds.items():
            prefix = self.model.slots[name].prefix
            expected |= {f"{prefix}.{part}": tensor for part, tensor in unique_tensors(seed).items()}
        found = _below(self.tensors, "model/")
        self._require_names(found, expected, "this model")
        for name, tensor in expected.items():
            if found[name].shape != tensor.shape or found[name].dtype != tensor.dtype:
                raise ModelFileError(
                    f"{self.path}: {name} is {tuple(found[name].shape)} {found[name].dtype}, "
                    f"the model's is {tuple(tensor.shape)} {tensor.dtype}"
                )

    def _require_names(self, found: Collection[str], expected: Collection[str], owner: str) -> None:
        for name in sorted(set(found) ^ set(expected)):
            problem = "is missing" if name in expected else f"does not belong to {owner}"
            raise ModelFileError(f"{self.path}: {name} {problem}")

    def _check_optimizer(self, care: OptimiserCare) -> None:
        path, saved = self.path, self.record.optimizer
        if saved is None:
            raise ModelFileError(
                f"{path} holds no optimizer state: detach() the optimizer first, or save with one"
            )
        kind = type(care.optimizer).__name__
        if saved.kind != kind:
            raise ModelFileError(f"{path} holds {saved.kind} state, the attached optimizer is {kind}")
        self._require_groups(care, saved)
        templates = self._templates(care, saved)
        for index, (group, template) in enumerate(zip(saved.groups, templates, strict=True)):
            options = _options(group) | _below(self.tensors, f"optimizer/group {index}/")
            odd = ", ".join(sorted((set(options) ^ (set(template) - PARAMETERS)) - care.begun_anew))
            if odd:
                raise ModelFileError(f"{path}: the options of the optimizer's group {index} differ: {odd}")
            for key, value in options.items():
                if key not in care.begun_anew and not _alike(value, template[key]):
                    raise ModelFileError(
                        f"{path}: optimizer option {key} is {value!r}, expected one like {template[key]!r}"
                    )
        self._check_state(care, saved, templates)

    def _require_groups(self, care: OptimiserCare, saved: OptimizerRecord) -> None:
        """The host's groups hold what those here do, in order; fossils are in them, seeds that learn in their own."""
        names = {id(parameter): name for name, parameter in self.model.named_parameters()}
        ours = [[names.get(id(p), "?") for p in group["params"]] for group in _hosts_groups(care)]
        ours = [[name for name in group if not names_a_seed(name)] for group in ours]
        trained = [slot for slot in self.seeds if not self.record.slots[slot].fading]
        slot_of = {name: slot for slot in trained for name in self._parts(slot)}
        theirs, settled = [], []
        for group, owner in zip(saved.groups, _owners(self.model, self.record, saved), strict=True):
            inside = sorted({slot_of[name] for name in group.parameters if name in slot_of})
            others = [name for name in group.parameters if name not in slot_of]
            settled += inside
            if owner is None:
                theirs.append(others)
            elif inside != [owner.name] or others:
                settled.append("?")
        held = sorted(name for group in saved.groups for name in group.parameters)
        wanted = sorted([*slot_of, *chain.from_iterable(ours)])
        alike = list(map(sorted, theirs)) == list(map(sorted, ours))
        if not alike or sorted(settled) != sorted(trained) or held != wanted:
            raise ModelFileError(
                f"{self.path}: the optimizer's groups do not hold the parameters they should; one that was added "
                "while it trained has to be added here, too, before it is loaded"
            )

    def _parts(self, name: str) -> list[str]:
        """The names of the parameters of a slot's seed."""
        prefix = self.model.slots[name].prefix
        return [f"{prefix}.{part}" for part, _ in self.seeds[name].named_parameters()]

    def _templates(self, care: OptimiserCare, saved: OptimizerRecord) -> list[Group]:
        """For each saved group the one here whose options it must have: a seed's has those of the one it follows."""
        hosts, owners = iter(_hosts_groups(care)), _owners(self.model, self.record, saved)
        places = {index: next(hosts) for index, owner in enumerate(owners) if owner is None}
        seeds = {index: owner for index, owner in enumerate(owners) if owner is not None}
        known = set(saved.homes) <= {owner.name for owner in seeds.values()}
        if not known or not set(saved.homes.values()) <= places.keys():
            raise ModelFileError(
                f"{self.path}: seeds follow groups {saved.homes}, which are not all of the host"
            )
        for index, owner in seeds.items():
            home = saved.homes.get(owner.name)
            places[index] = care.found_home(owner) if home is None else places[home]
        return [places[index] for index in range(len(owners))]

    def _check_state(self, care: OptimiserCare, saved: OptimizerRecord, templates: Sequence[Group]) -> None:
        """Exactly the state tensors the record names, each as the optimiser would make it."""
        named = self.model.named_parameters()
        parameters = {name: parameter for name, parameter in named if not names_a_seed(name)}
        for slot, seed in self.seeds.items():
            parameters |= dict(seed.named_parameters(prefix=self.model.slots[slot].prefix))
        expected = {
            f"optimizer/{name}/{key}": (name, key) for name, keys in saved.tensors.items() for key in keys
        }
        found = [name for name in self.tensors if name.startswith("optimizer/")]
        found = [name for name in found if not name.startswith("optimizer/group ")]
        self._require_names(found, expected, "the optimizer's state")
        if set(saved.tensors) != set(saved.scalars) or not set(saved.tensors) <= set(parameters):
            raise ModelFileError(
                f"{self.path}: the optimizer's state names parameters that are not the model's"
            )
        template_of = {
            name: template
            for group, template in zip(saved.groups, templates, strict=True)
            for name in group.parameters
        }
        first = care.optimizer.param_groups[0]
        for name, (owner, key) in expected.items():
            tensor, parameter = self.tensors[name], parameters[owner]
            if tensor.shape in (parameter.shape, torch.Size()) and tensor.is_floating_point():
                continue
            like = state_of(care.optimizer, template_of.get(owner, first), parameter).get(key)
            if not isinstance(like, Tensor) or (tensor.shape, tensor.dtype) != (like.shape, like.dtype):
                raise ModelFileError(f"{self.path}: {name} is {tuple(tensor.shape)} {tensor.dtype}")


def _hosts_groups(care: OptimiserCare) -> list[Group]:
    """The groups that stay when all seeds have left: the group of a seed goes with it."""
    return [group for group in care.optimizer.param_groups if not care.is_seeds(group)]


def _owners(model: GrowingModel, record: ModelRecord, saved: OptimizerRecord) -> list[Slot | None]:
    """For each saved group the slot whose seed learns in it; None of the host's, between which seeds' may stand."""
    learning = [slot for slot in model.slots.values() if record.slots[slot.name].stage.is_live]
    scales = {f"{slot.prefix}.scale": slot for slot in learning}
    return [next((scales[n] for n in group.parameters if n in scales), None) for group in saved.groups]


def _alike(value: object, template: object) -> bool:
    """Whether an option could stand in the place of `template`."""
    if isinstance(template, Tensor):
        return isinstance(value, Tensor) and value.shape == template.shape and value.is_floating_point()
    if isinstance(template, tuple):
        return isinstance(value, list) and len(value) == len(template)
    if isinstance(template, list):
        return isinstance(value, list)
    if template is None or isinstance(template, bool):
        return value is None or isinstance(value, bool)
    if isinstance(template, int | float):
        return (
            isinstance(value, int | float)
            and not isinstance(value, bool)
            and (value >= 0.0 or template < 0.0)
        )
    return type(value) is type(template)


# Restoring


def _restore_optimizer(
    model: GrowingModel,
    care: OptimiserCare,
    record: ModelRecord,
    saved: OptimizerRecord,
    tensors: Mapping[str, Tensor],
) -> None:
    care.seed_lr_multiplier = saved.seed_lr_multiplier
    _regroup(model, care, record, saved)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    packed = care.optimizer.state_dict()
    packed["state"], exact = {}, {}
    for index, (group, theirs) in enumerate(zip(packed["param_groups"], saved.groups, strict=True)):
        options = {key: _as_it_was(value, group.get(key)) for key, value in _options(theirs).items()}
        group.update(options | _below(tensors, f"optimizer/group {index}/"))
        parameters = care.optimizer.param_groups[index]["params"]
        for number, parameter in zip(group["params"], parameters, strict=True):
            name = names[id(parameter)]
            if name in saved.scalars:
                kept = _below(tensors, f"optimizer/{name}/")
                laid_out = {key: laid_out_like(parameter, value) for key, value in kept.items()}
                packed["state"][number] = {**saved.scalars[name], **laid_out}
                exact[parameter] = laid_out
    care.optimizer.load_state_dict(packed)
    for parameter, laid_out in exact.items():  # torch has given them the parameter's dtype
        state = care.optimizer.state[parameter]
        state.update({k: v.to(state[k].device) for k, v in laid_out.items() if v.dtype != state[k].dtype})


def _regroup(model: GrowingModel, care: OptimiserCare, record: ModelRecord, saved: OptimizerRecord) -> None:
    """Give the optimiser the seeds, which have all left it: each where it was, and groups in the order they had."""
    hosts, owners = iter(list(care.optimizer.param_groups)), _owners(model, record, saved)
    places = {index: next(hosts) for index, owner in enumerate(owners) if owner is None}
    scales = {f"{slot.prefix}.scale": slot for slot in model.slots.values()}
    for index, home in places.items():
        for name in saved.groups[index].parameters:
            if name in scales:
                care.settle(scales[name], home)
    for index, owner in enumerate(owners):
        if owner is not None:
            followed = saved.homes.get(owner.name)
            care.adopt(owner, None if followed is None else places[followed])
            places[index] = care.optimizer.param_groups[-1]
    care.optimizer.param_groups[:] = [places[index] for index in range(len(owners))]


def _options(group: GroupRecord) -> dict[str, JsonValue]:
    """Of a saved group. Older files hold the names of its parameters there, whose order may be another here."""
    return {key: value for key, value in group.options.items() if key != "param_names"}


def _as_it_was(value: JsonValue, like: object) -> object:
    """An option as the optimiser has it: JSON knows no tuples."""
    return tuple(value) if isinstance(like, tuple) and isinstance(value, list) else value


def laid_out_like(parameter: Tensor, value: Tensor) -> Tensor:
    """A copy of an optimiser's tensor in its parameter's memory format: fused ones walk both as flat memory."""
    if value.shape != parameter.shape:
        return value.clone()
    laid_out = torch.empty_like(parameter, dtype=value.dtype, requires_grad=False)
    fill(laid_out, value)
    return laid_out


def _below(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
