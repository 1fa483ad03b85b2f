"""A growing model as plain data: a record of what is no tensor, and the tensors by name."""

import math
from dataclasses import asdict
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue
from torch import Tensor, nn

from esper.kasmina.model import GrowingModel
from esper.kasmina.optimisers import SEED_RATE, OptimiserCare, home_index
from esper.kasmina.replicas import whole
from esper.kasmina.slot import SlotRecord


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


def describe(model: GrowingModel, *, optimizer: bool = True) -> tuple[ModelRecord, dict[str, Tensor]]:
    """Everything `save` writes: what is no tensor, and the tensors by name (the live ones, not copies).

    Where parameters are sharded, the tensors are gathered: all processes must call this together.

    optimizer  whether the attached one belongs to it
    """
    model.replicas.rest()
    tensors = {f"model/{name}": tensor for name, tensor in unique_tensors(model).items()}
    attached = None
    if model.care is not None and optimizer:
        attached, state = _describe_optimizer(model, model.care)
        tensors |= state
    record = ModelRecord(
        format="esper growing model",
        version=VERSION,
        growth_seed=model.growth_seed,
        isolation_penalty=model.isolation_penalty,
        rules=asdict(model.rules),
        slots={
            name: slot.record(non_finite=(bool(slot.non_finite[0]), bool(slot.non_finite[1])))
            for name, slot in model.slots.items()
        },
        optimizer=attached,
    )
    # Momentum of sparse gradients is sparse: with its zeros it can be written, and is the same but for rounding.
    dense = {name: tensor.to_dense() if tensor.is_sparse else tensor for name, tensor in tensors.items()}
    return record, {name: whole(tensor.detach()).contiguous() for name, tensor in dense.items()}


def _describe_optimizer(
    model: GrowingModel, care: OptimiserCare
) -> tuple[OptimizerRecord, dict[str, Tensor]]:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    tensors: dict[str, Tensor] = {}
    groups, scalars, kept = [], {}, {}
    for index, group in enumerate(care.optimizer.param_groups):
        if any(id(parameter) not in names for parameter in group["params"]):
            raise ValueError(
                "the attached optimizer holds parameters that are not the model's: save it on its own"
            )
        kept_apart = {key: value for key, value in group.items() if isinstance(value, Tensor)}
        tensors |= {f"optimizer/group {index}/{key}": value for key, value in kept_apart.items()}
        options = {
            key: _plain(value, f"its option {key}")
            for key, value in group.items()
            if key != "params" and key not in kept_apart
        }
        groups.append(GroupRecord(parameters=[names[id(p)] for p in group["params"]], options=options))
    for parameter, state in care.optimizer.state.items():
        name = names[id(parameter)]
        tensors |= {f"optimizer/{name}/{k}": v for k, v in state.items() if isinstance(v, Tensor)}
        scalars[name] = {k: v for k, v in state.items() if not isinstance(v, Tensor)}
        kept[name] = [k for k, v in state.items() if isinstance(v, Tensor)]
    record = OptimizerRecord(
        kind=type(care.optimizer).__name__,
        seed_lr_multiplier=care.seed_lr_multiplier,
        groups=groups,
        homes={
            name: home_index(model.slots[name], care.optimizer.param_groups, first)
            for name, first in care.homes.items()
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
