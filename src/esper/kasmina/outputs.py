"""The tensor that matters in whatever a submodule returns."""

import copy
from collections.abc import MutableMapping

from torch import Tensor


def main_tensor(output: object) -> Tensor | None:
    """The output itself, or the first member of a tuple or list, or the first tensor of a mapping."""
    if isinstance(output, Tensor):
        return output
    if isinstance(output, tuple | list):
        rebuildable = type(output) in (tuple, list) or hasattr(output, "_replace")
        return output[0] if output and rebuildable and isinstance(output[0], Tensor) else None
    if isinstance(output, MutableMapping):
        return next((value for value in output.values() if isinstance(value, Tensor)), None)
    return None


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
