"""Saving a growing model: one safetensors file that holds weights, topology, lifecycle and optimiser state.

The tensors are under `model/...` and `optimizer/...`; everything else is one JSON document in the file's metadata.
Nothing in it can execute, and a file is checked in full before the model is touched.
"""

import json
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

import torch
from pydantic import JsonValue, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from esper.kasmina.describing import VERSION, ModelRecord, OptimizerRecord, describe, unique_tensors
from esper.kasmina.model import GrowingModel
from esper.kasmina.optimisers import OptimiserCare, state_of
from esper.kasmina.replicas import fill
from esper.kasmina.seed import Seed, bear_seed, birth_randomness
from esper.kasmina.slot import Slot, SlotRecord
from esper.kasmina.stage_machine import GrowthRules
from esper.kasmina.tree import names_a_seed
from esper.leyline import SlotConfig, Stage
from esper.leyline.errors import EsperError, first_finding
from esper.leyline.files import write_atomically

Names = tuple[str, ...]
"""Of the parameters in a group, sorted."""


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
        _restore_optimizer(model, model.care, record.optimizer, tensors)
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
        seeds, held = self._groups_of_seeds(), [_names(group.parameters) for group in saved.groups]
        hosts = [names for names in held if names not in seeds]
        if hosts != self._groups_of_host_with_fossils(care) or sorted(held) != sorted([*hosts, *seeds]):
            raise ModelFileError(
                f"{path}: the optimizer's groups do not hold the parameters they should; one that was added while it "
                "trained has to be added here, too, before it is loaded"
            )
        homes = self._homes(care, saved)
        for index, (group, home) in enumerate(zip(saved.groups, homes, strict=True)):
            template = care.optimizer.param_groups[home]
            options = group.options | _below(self.tensors, f"optimizer/group {index}/")
            odd = ", ".join(sorted((set(options) ^ (set(template) - {"params"})) - care.begun_anew))
            if odd:
                raise ModelFileError(f"{path}: the options of the optimizer's group {index} differ: {odd}")
            for key, value in options.items():
                if key not in care.begun_anew and not _alike(value, template[key]):
                    raise ModelFileError(
                        f"{path}: optimizer option {key} is {value!r}, expected one like {template[key]!r}"
                    )
        self._check_state(care, saved, homes)

    def _groups_of_host_with_fossils(self, care: OptimiserCare) -> list[Names]:
        """What each of the host's groups is to hold, in order."""
        names = {id(parameter): name for name, parameter in self.model.named_parameters()}
        kept = self._groups_of_host(care)
        held = ([names.get(id(p), "?") for p in care.optimizer.param_groups[i]["params"]] for i in kept)
        groups = [[name for name in found if not names_a_seed(name)] for found in held]
        for name in self.seeds:
            if self.record.slots[name].stage is Stage.FOSSILIZED:
                groups[kept.index(care.home_index(self.model.slots[name]))] += self._parts(name)
        return [_names(group) for group in groups]

    def _groups_of_seeds(self) -> dict[Names, Slot]:
        """What the group of each seed that learns is to hold. They stand between the host's, as they were born."""
        saved = self.record.slots
        learning = [name for name in self.seeds if saved[name].stage.is_live and not saved[name].fading]
        return {_names(self._parts(name)): self.model.slots[name] for name in learning}

    def _parts(self, name: str) -> list[str]:
        """The names of the parameters of a slot's seed."""
        prefix = self.model.slots[name].prefix
        return [f"{prefix}.{part}" for part, _ in self.seeds[name].named_parameters()]

    def _groups_of_host(self, care: OptimiserCare) -> list[int]:
        """Which groups stay when all seeds have left: the group of a seed goes with it."""
        groups = enumerate(care.optimizer.param_groups)
        return [index for index, group in groups if not care.is_seeds(group)]

    def _homes(self, care: OptimiserCare, saved: OptimizerRecord) -> list[int]:
        """For each saved group the one here whose options it must have: a seed has those of its submodule."""
        hosts, seeds = iter(self._groups_of_host(care)), self._groups_of_seeds()
        slots = [seeds.get(_names(group.parameters)) for group in saved.groups]
        return [next(hosts) if slot is None else care.home_index(slot) for slot in slots]

    def _check_state(self, care: OptimiserCare, saved: OptimizerRecord, homes: Sequence[int]) -> None:
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
        home_of = {
            name: home for group, home in zip(saved.groups, homes, strict=True) for name in group.parameters
        }
        for name, (owner, key) in expected.items():
            tensor, parameter = self.tensors[name], parameters[owner]
            if tensor.shape in (parameter.shape, torch.Size()) and tensor.is_floating_point():
                continue
            like = state_of(care.optimizer, home_of.get(owner, 0), parameter).get(key)
            if not isinstance(like, Tensor) or (tensor.shape, tensor.dtype) != (like.shape, like.dtype):
                raise ModelFileError(f"{self.path}: {name} is {tuple(tensor.shape)} {tensor.dtype}")


def _names(parameters: Iterable[str]) -> Names:
    """What a group holds, in whatever order: by this it is known."""
    return tuple(sorted(parameters))


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
    model: GrowingModel, care: OptimiserCare, saved: OptimizerRecord, tensors: Mapping[str, Tensor]
) -> None:
    care.seed_lr_multiplier = saved.seed_lr_multiplier
    scales = {f"{slot.prefix}.scale": slot for slot in model.slots.values()}
    ordered = (name for group in saved.groups for name in group.parameters)
    for name in ordered:
        if name in scales:
            _adopt(care, scales[name])
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    here = [(_names(names[id(p)] for p in group["params"]), group) for group in care.optimizer.param_groups]
    for place, theirs in enumerate(saved.groups):  # in their order, too
        index = next(i for i, (held, _) in enumerate(here) if held == _names(theirs.parameters))
        care.optimizer.param_groups[place] = here.pop(index)[1]
    packed = care.optimizer.state_dict()
    packed["state"], exact = {}, {}
    for index, (group, theirs) in enumerate(zip(packed["param_groups"], saved.groups, strict=True)):
        options = {key: _as_it_was(value, group.get(key)) for key, value in theirs.options.items()}
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
