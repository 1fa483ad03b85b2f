"""A grower inside a checkpoint: plain data and tensors, checked before anything is changed."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from esper.grower.history import DECISIONS
from esper.grower.measuring import Scale
from esper.kasmina.persistence import ModelFileError, ModelRecord, describe, reinstate
from esper.leyline import EpochReport, LifecycleOp

if TYPE_CHECKING:
    from esper.grower.grower import Grower

FORMAT, VERSION = "esper grower", 2
_SCALE = TypeAdapter(Scale)


def saved_state(grower: "Grower") -> dict[str, object]:
    record, tensors = describe(grower.model)
    return {
        "format": FORMAT,
        "version": VERSION,
        "controller": grower.controller,
        "model": record.model_dump_json(),
        "tensors": {name: tensor.clone() for name, tensor in tensors.items()},
        "report": asdict(grower._host.report),
        "last_operation": int(grower._last_operation),
        "observer": grower._observer.state_dict(0),
        "decider": grower._decider.state_dict(),
        "guard": grower._guard.state_dict(),
        "pay": grower._pay.state_dict(),
        "scale": asdict(grower._scale),
        "seed_scale": asdict(grower._seed_scale),
        "warned": sorted(grower._notes.told_once),
        "history": DECISIONS.dump_json(grower.history).decode(),
    }


def restore_state(grower: "Grower", state: Mapping[str, object]) -> None:
    if state.get("format") != FORMAT or state.get("version") != VERSION:
        raise ValueError(
            f"the state has format {state.get('format')!r}, version {state.get('version')!r}; this Esper reads "
            f"{FORMAT!r}, version {VERSION}"
        )
    if state["controller"] != grower.controller:
        raise ValueError(
            f"the state was saved under controller {state['controller']!r}; this Grower has {grower.controller!r}"
        )
    model, tensors, report = state["model"], state["tensors"], state["report"]
    observer, decider, guard, pay = (_part(state, name) for name in ("observer", "decider", "guard", "pay"))
    scales = [_SCALE.validate_python(state[name]) for name in ("scale", "seed_scale")]
    operation, warned, told = (state[name] for name in ("last_operation", "warned", "history"))
    try:
        record, history = ModelRecord.model_validate_json(str(model)), DECISIONS.validate_json(str(told))
    except ValidationError as error:
        raise ModelFileError(f"the saved state is damaged: {error.errors()[0]['msg']}") from None
    assert isinstance(tensors, Mapping)
    assert isinstance(report, Mapping)
    reinstate(grower.model, record, {name: _tensor(name, value) for name, value in tensors.items()})
    grower.history = history
    grower._host.report = EpochReport(**report)
    grower._observer.load_state_dict(0, grower._host, observer)
    grower._decider.load_state_dict(decider)
    grower._guard.load_state_dict(guard)
    grower._pay.load_state_dict(pay)
    grower._last_operation = LifecycleOp(int(str(operation)))
    grower._scale, grower._seed_scale = scales
    grower._notes.told_once = set(warned) if isinstance(warned, list) else set()
    grower._undecided = False


def _part(state: Mapping[str, object], name: str) -> Mapping[str, object]:
    part = state[name]
    if not isinstance(part, Mapping):
        raise TypeError(f"{name} of the saved state is a {type(part).__name__}; expected a mapping")
    return part


def _tensor(name: str, value: object) -> Tensor:
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} of the saved state is a {type(value).__name__}; expected a tensor")
    return value
