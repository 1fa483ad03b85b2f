"""A growing model as plain data: a record of what is no tensor, and the tensors by name."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue
from torch import Tensor, nn

from esper.kasmina.model import GrowingModel
from esper.kasmina.optimisers import PARAMETERS, SEED_RATE, OptimiserCare, home_index
from esper.kasmina.replicas import whole
from esper.kasmina.schedules import Group
from esper.kasmina.slot import SlotRecord
from esper.kasmina.snapshots import ModelSnapshot
from esper.kasmina.tree import names_a_seed


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class GroupRecord(_Record):
    """One parameter group of the optimiser."""

    parameters: list[str]
    options: dict[str, JsonValue]


class OptimizerRecord(_Record):
    """The state of the attached optimiser, but for its tensors."""

    kind: str
    seed_lr_multiplier: Annotated[float, Field(gt=0.0)] = SEED_RATE
    """As it was attached; older files do not say, and had this one by default."""
    groups: list[GroupRecord]
    homes: dict[str, Annotated[int, Field(ge=0)]] = {}
    """slot -> the group that its seed's own follows; older files do not say, and it is found anew"""
    scalars: dict[str, dict[str, bool | float | int | str | None]]
    """parameter -> what its state holds besides tensors"""
    tensors: dict[str, list[str]]
    """parameter -> the tensors its state holds"""


class ModelRecord(_Record):
    """Everything about a growing model that is not a tensor."""

    format: Literal["esper growing model"]
    version: int
    growth_seed: int
    isolation_penalty: Annotated[float, Field(ge=0.0)]
    rules: dict[str, int]
    slots: dict[str, SlotRecord]
    optimizer: OptimizerRecord | None


VERSION = 2


Described = tuple[ModelRecord, dict[str, Tensor]]
"""Everything that a file holds: what is no tensor, and the tensors by name."""


@dataclass(frozen=True)
class _Contents:
    """What is in a model and its optimiser, or was."""

    tensors: Mapping[str, Tensor]
    names: Mapping[int, str]
    """Of the parameters, by identity."""
    slots: dict[str, SlotRecord]
    groups: Sequence[Group]
    homes: Mapping[str, Tensor | None]
    """As `OptimiserCare.homes`."""
    state: Mapping[Tensor, Mapping[str, Any]]


def describe(model: GrowingModel, *, optimizer: bool = True) -> Described:
    """Everything `save` writes: what is no tensor, and the tensors by name (the live ones, not copies).

    Where parameters are sharded, the tensors are gathered: all processes must call this together.

    optimizer  whether the attached one belongs to it
    """
    model.replicas.rest()
    care = model.care if optimizer else None
    contents = _Contents(
        tensors=unique_tensors(model),
        names={id(parameter): name for name, parameter in model.named_parameters()},
        slots={name: slot.record(non_finite=_read(slot.non_finite)) for name, slot in model.slots.items()},
        groups=[] if care is None else care.optimizer.param_groups,
        homes={} if care is None else care.homes,
        state={} if care is None else care.optimizer.state,
    )
    return _describe(model, care, contents)


def describe_remembered(snapshot: ModelSnapshot) -> Described:
    """What `describe` would give of a model that had gone back to the snapshot; it is not touched."""
    model, standing, copies = snapshot.model, snapshot.standing, snapshot.copies()
    model.replicas.rest()
    tensors = {name: tensor for name, tensor in unique_tensors(model).items() if not names_a_seed(name)}
    parameters = {name: p for name, p in model.named_parameters() if not names_a_seed(name)}
    slots = {}
    for slot, (record, seed), flags in zip(model.slots.values(), standing.slots, snapshot.flags, strict=True):
        slots[slot.name] = record.at_rest(_read(copies[id(flags)]))
        if seed is not None:
            tensors |= {f"{slot.prefix}.{name}": tensor for name, tensor in unique_tensors(seed).items()}
            parameters |= dict(seed.named_parameters(prefix=slot.prefix))

    def then(values: Mapping[str, Any]) -> dict[str, Any]:
        return {name: copies.get(id(value), value) for name, value in values.items()}

    contents = _Contents(
        tensors={name: copies.get(id(tensor), tensor) for name, tensor in tensors.items()},
        names={id(parameter): name for name, parameter in parameters.items()},
        slots=slots,
        groups=[then(content) for _, content in standing.groups()],
        homes=standing.homes,
        state={parameter: then(values) for parameter, values in standing.state.items()},
    )
    return _describe(model, model.care, contents)


def plain_data(described: Described) -> dict[str, object]:
    """The same as a checkpoint holds it: loadable with `weights_only=True`, and copies that nothing changes."""
    record, tensors = described
    return {
        "model": record.model_dump_json(),
        "tensors": {name: tensor.clone() for name, tensor in tensors.items()},
    }


def _read(flags: Tensor) -> tuple[bool, bool]:
    """The flags of a slot, which may be on a device."""
    return bool(flags[0]), bool(flags[1])


def _describe(model: GrowingModel, care: OptimiserCare | None, contents: _Contents) -> Described:
    tensors = {f"model/{name}": tensor for name, tensor in contents.tensors.items()}
    attached = None
    if care is not None:
        attached, state = _describe_optimizer(model, care, contents)
        tensors |= state
    record = ModelRecord(
        format="esper growing model",
        version=VERSION,
        growth_seed=model.growth_seed,
        isolation_penalty=model.isolation_penalty,
        rules=asdict(model.rules),
        slots=contents.slots,
        optimizer=attached,
    )
    # Momentum of sparse gradients is sparse: with its zeros it can be written, and is the same but for rounding.
    dense = {name: tensor.to_dense() if tensor.is_sparse else tensor for name, tensor in tensors.items()}
    return record, {name: whole(tensor.detach()).contiguous() for name, tensor in dense.items()}


def _describe_optimizer(
    model: GrowingModel, care: OptimiserCare, contents: _Contents
) -> tuple[OptimizerRecord, dict[str, Tensor]]:
    names = contents.names
    tensors: dict[str, Tensor] = {}
    groups, scalars, kept = [], {}, {}
    for index, group in enumerate(contents.groups):
        if any(id(parameter) not in names for parameter in group["params"]):
            raise ValueError(
                "the attached optimizer holds parameters that are not the model's: save it on its own"
            )
        kept_apart = {key: value for key, value in group.items() if isinstance(value, Tensor)}
        tensors |= {f"optimizer/group {index}/{key}": value for key, value in kept_apart.items()}
        options = {
            key: _plain(value, f"its option {key}")
            for key, value in group.items()
            if key not in PARAMETERS and key not in kept_apart
        }
        groups.append(GroupRecord(parameters=[names[id(p)] for p in group["params"]], options=options))
    for parameter, state in contents.state.items():
        name = names[id(parameter)]
        tensors |= {f"optimizer/{name}/{k}": v for k, v in state.items() if isinstance(v, Tensor)}
        scalars[name] = {k: v for k, v in state.items() if not isinstance(v, Tensor)}
        kept[name] = [k for k, v in state.items() if isinstance(v, Tensor)]
    record = OptimizerRecord(
        kind=type(care.optimizer).__name__,
        seed_lr_multiplier=care.seed_lr_multiplier,
        groups=groups,
        homes={
            name: home_index(model.slots[name], contents.groups, first)
            for name, first in contents.homes.items()
        },
        scalars=scalars,
        tensors=kept,
    )
    return record, tensors


def _plain(value: object, what: str) -> JsonValue:
    """A value that JSON gives back as it was, tuples as lists."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, list | tuple):
        return [_plain(member, what) for member in value]
    raise ValueError(f"the attached optimizer cannot be saved: {what} is {value!r}")


def unique_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers, tied ones once, under their first name."""
    extra = [name for name in module.state_dict() if name.endswith("_extra_state")]
    if extra:
        raise ValueError(f"{extra[0]}: modules with extra state cannot be saved in safetensors")
    for name, tensor in module.state_dict().items():
        if any(step == 0 and size > 1 for step, size in zip(tensor.stride(), tensor.shape, strict=True)):
            raise ValueError(f"{name} is an expanded tensor, which cannot be loaded into: make it contiguous")
    unique: dict[int, tuple[str, Tensor]] = {}
    for name, tensor in module.state_dict(keep_vars=True).items():
        unique.setdefault(id(tensor), (name, tensor))
    return dict(unique.values())
