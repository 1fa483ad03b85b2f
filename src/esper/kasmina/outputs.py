"""The tensor that matters in whatever a submodule returns."""

import copy
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

Kind = Literal["tensor", "tuple", "list", "named tuple", "mapping"]


@dataclass(frozen=True, slots=True)
class OutputForm:
    """Where the main tensor sits: the output itself, the first member, or under a field or key."""

    kind: Kind
    key: str | None = None


PLAIN = OutputForm("tensor")


def output_form(output: object) -> OutputForm | None:
    """The form of an output that can grow; None if it holds no tensor where one is expected."""
    if isinstance(output, Tensor):
        return PLAIN
    if isinstance(output, tuple | list) and output and isinstance(output[0], Tensor):
        if isinstance(output, tuple) and hasattr(output, "_replace"):
            return OutputForm("named tuple", getattr(output, "_fields")[0])  # noqa: B009
        if type(output) in (tuple, list):
            return OutputForm("tuple" if isinstance(output, tuple) else "list")
    if isinstance(output, MutableMapping):
        key = next((key for key, value in output.items() if isinstance(value, Tensor)), None)
        return None if key is None else OutputForm("mapping", key)
    return None


def main_tensor(output: object) -> Tensor | None:
    """The output itself, or the first member of a tuple or list, or the first tensor of a mapping."""
    form = output_form(output)
    if form is None:
        return None
    tensor = output if form.kind == "tensor" else output[0 if form.kind != "mapping" else form.key]  # type: ignore[index]
    assert isinstance(tensor, Tensor)
    return tensor


def with_main_tensor(output: object, tensor: Tensor) -> object:
    """`output` with its main tensor replaced; the original is left as it was."""
    if isinstance(output, tuple) and hasattr(output, "_replace"):
        return type(output)(tensor, *output[1:])
    if isinstance(output, tuple):
        return (tensor, *output[1:])
    if isinstance(output, list):
        return [tensor, *output[1:]]
    if isinstance(output, MutableMapping):
        key = next(key for key, value in output.items() if isinstance(value, Tensor))
        replaced = copy.copy(output)
        replaced[key] = tensor
        return replaced
    return tensor
