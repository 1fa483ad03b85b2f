"""Checkpoints of a learner: written as data alone, and checked in full before anything is changed by one."""

import io
import pickle
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from esper.leyline.errors import EsperError

CHECKPOINT_VERSION = "esper-ppo-2"
CHECKED_PARTS = (
    *("policy", "reward_normalizer", "observation_stats", "actor", "begins", "shuffle_generator"),
    "counters",
)
"""Parts of a checkpoint whose names and shapes must be those of the agent that loads it."""

Plain: TypeAlias = (
    "Tensor | bool | int | float | str | list[Plain] | tuple[Plain, ...] | dict[str, Plain] | None"
)
"""What a checkpoint may hold besides the agent: data, never objects."""


class CheckpointError(EsperError, ValueError):
    """A checkpoint that must not or cannot be loaded; the message says which and why."""


class DamagedCheckpoint(CheckpointError):
    """A checkpoint whose content is no longer what was written."""


def judged_checkpoints(run: Path) -> list[Path]:
    """The checkpoints that a run can be judged and used by, by preference: its best, its last, the one before."""
    checkpoints = (run / "checkpoints" / name for name in ("best.pt", "last.pt", "previous.pt"))
    return [path for path in checkpoints if path.is_file()]


def write_checkpoint(path: Path, parts: Mapping[str, object], extra: Mapping[str, Plain] | None) -> None:
    """Write an agent's parts, and what it does not own, under this version."""
    torch.save({"version": CHECKPOINT_VERSION, **parts, "extra": dict(extra or {})}, path)


def read_fitting_checkpoint(
    path: Path, parts: Mapping[str, object], device: torch.device | str = "cpu"
) -> dict[str, Any]:
    """The data of a checkpoint that has the parts of this agent, in their layout and form; it may lack the start."""
    checkpoint = read_checkpoint(path, device)
    ours, theirs = ({"version", *each, "extra"} - {"start"} for each in (parts, checkpoint))
    if ours != theirs:
        lacking, unknown = sorted(ours - theirs), sorted(theirs - ours)
        raise CheckpointError(f"{path}: the checkpoint lacks {lacking} and has unknown parts {unknown}")
    layout = parts["layout"]
    assert isinstance(layout, dict)
    require_same_values(path, layout, checkpoint["layout"])
    for part in CHECKED_PARTS:
        require_same_form(path, part, parts[part], checkpoint[part])
    if not isinstance(checkpoint["extra"], dict):
        raise CheckpointError(f"{path}: the checkpoint's extra is not a dict")
    return checkpoint


def read_checkpoint(path: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """A checkpoint's data, from data alone: nothing in the file is executed."""
    if not path.is_file():
        raise CheckpointError(f"{path}: there is no such checkpoint")
    content = _sound_copy(path)
    try:
        checkpoint = torch.load(content, map_location=device, weights_only=True)
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{path}: refused, it holds something else than tensors and plain data"
        ) from error
    except Exception as error:  # parts of the archive can be missing
        raise DamagedCheckpoint(f"{path}: damaged, it cannot be read ({error})") from error
    if not isinstance(checkpoint, dict) or "version" not in checkpoint:
        raise CheckpointError(f"{path}: not a checkpoint of this learner (it names no version)")
    if checkpoint["version"] != CHECKPOINT_VERSION:
        raise CheckpointError(
            f"{path}: version {checkpoint['version']!r}; this code reads {CHECKPOINT_VERSION!r} only"
        )
    return checkpoint


def _sound_copy(path: Path) -> io.BytesIO:
    """The archive, made anew of the parts that have the checksum written with them: torch looks at none."""
    copy = io.BytesIO()
    try:
        with zipfile.ZipFile(path) as written, zipfile.ZipFile(copy, "w") as checked:
            for part in written.infolist():
                checked.writestr(part.filename, written.read(part))
    except PermissionError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from error
    except Exception as error:  # a damaged file can fail anywhere in the reader
        raise DamagedCheckpoint(f"{path}: damaged or cut short ({error})") from error
    copy.seek(0)
    return copy


def require_same_values(path: Path, ours: Mapping[str, object], theirs: object) -> None:
    """Raise unless every field is equal."""
    for field, value in ours.items():
        saved = theirs.get(field, "missing") if isinstance(theirs, dict) else "missing"
        if saved != value:
            raise CheckpointError(f"{path}: the checkpoint's {field} is {saved}, this agent's is {value}")


def require_same_form(path: Path, part: str, ours: object, theirs: object) -> None:
    """Raise unless both have the same names, with tensors of the same shape and type, or the same type."""
    ours_by_name, theirs_by_name = _forms(ours), _forms(theirs)
    for name in sorted({*ours_by_name, *theirs_by_name}):
        here, there = ours_by_name.get(name, "missing"), theirs_by_name.get(name, "missing")
        if here != there:
            raise CheckpointError(
                f"{path}: the checkpoint does not fit this agent's {part}: {name or part} is {there} "
                f"there, {here} here"
            )


def _forms(state: object, name: str = "") -> dict[str, str]:
    """dotted name -> dtype and shape of the tensor under it, or the type of what is not one."""
    if isinstance(state, Tensor):
        return {name: f"{state.dtype} {tuple(state.shape)}"}
    if not isinstance(state, Mapping):
        return {name: type(state).__name__}
    found = {}
    for key, value in state.items():
        found.update(_forms(value, f"{name}.{key}" if name else str(key)))
    return found


def optimizer_state(path: Path, optimizer: torch.optim.Adam, saved: object) -> dict[str, Any]:
    """The saved moments under the optimiser's own options: how it steps belongs to its device and config."""
    groups = optimizer.state_dict()["param_groups"]
    if not isinstance(saved, dict) or not isinstance(saved.get("state"), dict) or len(saved) != 2:
        raise CheckpointError(f"{path}: the checkpoint's optimizer is not the state of an optimiser")
    members = [group["params"] for group in groups]
    theirs = saved.get("param_groups")
    groups_are_dicts = isinstance(theirs, list) and all(isinstance(group, dict) for group in theirs)
    if theirs is None or not groups_are_dicts or [group.get("params") for group in theirs] != members:
        raise CheckpointError(f"{path}: the checkpoint's optimizer groups its parameters otherwise")
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for index, entry in saved["state"].items():
        if not isinstance(index, int) or not 0 <= index < len(parameters):
            raise CheckpointError(f"{path}: the checkpoint's optimizer knows a parameter {index!r}")
        parameter = parameters[index].detach()
        expected = {"step": torch.zeros(()), "exp_avg": parameter, "exp_avg_sq": parameter}
        require_same_form(path, f"optimizer, parameter {index}", expected, entry)
    return {"state": saved["state"], "param_groups": groups}


def generator_from(
    path: Path, checkpoint: Mapping[str, object], name: str, device: torch.device
) -> torch.Generator:
    """A generator that goes on from the state saved as `name`; one of another kind of device only seeds it."""
    generator, state = torch.Generator(device), checkpoint[name]
    if not isinstance(state, Tensor) or state.dtype != torch.uint8 or state.dim() != 1:
        raise CheckpointError(f"{path}: the checkpoint's {name} is not the state of a generator")
    state = state.cpu()
    if state.shape != generator.get_state().shape:
        return generator.manual_seed(zlib.crc32(state.numpy().tobytes()))
    try:
        return generator.set_state(state)
    except RuntimeError as error:
        raise CheckpointError(f"{path}: the checkpoint's {name} is damaged ({error})") from error
