"""One forward of the example through the bare host, to see what passes through each slot; and the main tensor of an
output, whatever form it has."""

import copy
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from esper.kasmina.errors import WrapError
from esper.leyline import Layout

Kind = Literal["tensor", "tuple", "list", "named tuple", "mapping"]


@dataclass(frozen=True, slots=True)
class OutputForm:
    """Where the main tensor sits: the output itself, the first member, or under a field or key."""

    kind: Kind
    key: str | None = None

    def pick(self, output: Any) -> Any:
        """The main tensor of an output of this form; of an `fx.Proxy` the proxy of it."""
        if self.kind == "tensor":
            return output
        return output[self.key if self.kind == "mapping" else 0]

    def put_back(self, output: Any, tensor: Any) -> Any:
        """`output`, or the `fx.Proxy` of one, with its main tensor replaced; the original is left as it was."""
        if self.kind == "tensor":
            return tensor
        if self.kind == "named tuple":
            return output._replace(**{str(self.key): tensor})
        if self.kind == "mapping":
            replaced = output.copy() if isinstance(output, fx.Proxy) else copy.copy(output)
            replaced.__setitem__(self.key, tensor)  # as a call, which a proxy records
            return replaced
        first = (tensor,) if self.kind == "tuple" else [tensor]
        return first + output[1:]


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
    tensor: Tensor | None = None if form is None else form.pick(output)
    return tensor


ExampleInput = Tensor | tuple[object, ...] | list[object] | Mapping[str, object]

_SERIES_MODULES = (
    nn.Conv1d,
    nn.ConvTranspose1d,
    nn.BatchNorm1d,
    nn.InstanceNorm1d,
    nn.GroupNorm,
    nn.MaxPool1d,
    nn.AvgPool1d,
    nn.AdaptiveAvgPool1d,
    nn.AdaptiveMaxPool1d,
)
_TOKEN_MODULES = (nn.Linear, nn.LayerNorm, nn.RMSNorm, nn.Embedding, nn.MultiheadAttention, nn.RNNBase)
_CHANNELS_LAST_MODULES = (nn.Linear, nn.LayerNorm, nn.RMSNorm, nn.Embedding)


@dataclass(slots=True)
class Sighting:
    """What a submodule put out in the example forward, over all its calls."""

    order: int
    shapes: list[torch.Size] = field(default_factory=list)
    dtype: torch.dtype = torch.float32
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    plain_arguments: bool = True
    """Called with tensors, numbers and the like alone, and leaves them as they are: a copy can be called too."""
    form: OutputForm = PLAIN
    positional: int = 0
    keywords: tuple[str, ...] = ()
    telling: nn.Module | None = None
    """The last submodule inside whose type shows what the axes of this very output mean."""
    batch_first: bool = True
    """The rows are the samples', in order."""
    last: Tensor | None = None
    """The activation of the last call."""
    unusable: str | None = None


def call_with(model: nn.Module, example: ExampleInput) -> object:
    """Call a model with a tensor, a tuple of arguments or a mapping of keyword arguments."""
    if isinstance(example, Mapping):
        return model(**example)
    if isinstance(example, tuple | list):
        return model(*example)
    return model(example)


def batch_size(example: ExampleInput) -> int:
    """Samples in the example: the first axis of its first tensor."""
    tensor = next((leaf for leaf in tree_leaves(example) if isinstance(leaf, Tensor) and leaf.ndim > 0), None)
    if tensor is None:
        raise WrapError(f"example_input holds no tensor with a batch axis: {type(example).__name__}")
    if tensor.shape[0] == 0:
        raise WrapError(
            f"example_input is an empty batch, shape {tuple(tensor.shape)}: give at least one sample"
        )
    return tensor.shape[0]


def probe(model: nn.Module, slots: Mapping[str, nn.Module], example: ExampleInput) -> dict[str, Sighting]:
    """Run the example in eval mode, leaving no trace; what fired, by slot name, in firing order.

    Two more forwards, one with a sample more and one with the samples in reverse, show which axis is the batch.
    """
    samples = batch_size(example)
    try:
        watch = _watched(model, slots, example)
    except Exception as error:
        error.add_note("while running example_input through the host to find out about its slots")
        raise
    try:
        larger = _watched(model, slots, rebatched(example, samples, lambda t: torch.cat([t, t[:1]])))
        reversed_ = _watched(model, slots, rebatched(example, samples, lambda t: t.flip(0)))
    except Exception:  # a host may insist on its batch size; then the first forward must do
        larger = reversed_ = watch
    if any(rows != watch.time_first.get(part, rows) for part, rows in larger.time_first.items()):
        raise WrapError(
            "the first axis of example_input is time, as a module with batch_first=False reads it: seeds need the "
            "batch first. Make it batch_first=True"
        )
    for name, seen in watch.sightings.items():
        more, back = larger.sightings.get(name), reversed_.sightings.get(name)
        if larger is not watch and more is not None and back is not None:
            grows = _grows_with_the_batch(seen, more, samples)
            seen.batch_first = grows and _follows_the_samples(seen, back, samples)
    return dict(sorted(watch.sightings.items(), key=lambda item: item[1].order))


def _grows_with_the_batch(seen: Sighting, more: Sighting, samples: int) -> bool:
    pairs = zip(seen.shapes, more.shapes, strict=False)
    return all(one[0] * (samples + 1) == other[0] * samples for one, other in pairs)


def _follows_the_samples(seen: Sighting, back: Sighting, samples: int) -> bool:
    """Reversing the samples reverses the rows, several rows a sample together."""
    if seen.last is None or back.last is None or seen.last.shape[0] % samples:
        return True  # there is nothing to compare, or the shape says it already
    ours, theirs = (t.reshape(samples, -1).float() for t in (seen.last, back.last))
    tolerance = 1e-3 * float(ours.abs().nan_to_num(0.0, 0.0, 0.0).amax()) if ours.numel() else 0.0
    return torch.allclose(ours.flip(0), theirs, rtol=0.0, atol=tolerance, equal_nan=True)


def _watched(model: nn.Module, slots: Mapping[str, nn.Module], example: ExampleInput) -> "_Watch":
    watch = _Watch(slots)
    # not inference_mode: caches may meet autograd
    with untouched(model), watch.hooks(model), torch.no_grad():
        call_with(model, example)
    return watch


def rebatched(example: ExampleInput, samples: int, change: Callable[[Tensor], Tensor]) -> ExampleInput:
    """The example with `change` done to every tensor that has the batch axis."""

    def apply(tensor: Tensor) -> Tensor:
        return change(tensor) if tensor.ndim > 0 and tensor.shape[0] == samples else tensor

    changed: ExampleInput = tree_map_only(Tensor, apply, example)
    return changed


class _Watch:
    """Temporary hooks that fill the sightings."""

    def __init__(self, slots: Mapping[str, nn.Module]) -> None:
        self.names = {id(module): name for name, module in slots.items()}
        self.sightings: dict[str, Sighting] = {}
        self.calls = 0
        self.leaves: list[tuple[nn.Module, torch.Size]] = []
        self.began: list[tuple[int, list[int]]] = []
        self.time_first: dict[nn.Module, int] = {}
        """module that reads time on its first axis -> the length of that axis"""

    @contextmanager
    def hooks(self, model: nn.Module) -> Iterator[None]:
        handles = []
        for module in model.modules():
            handles.append(module.register_forward_hook(self._saw_part))
            if id(module) in self.names:
                handles.append(module.register_forward_pre_hook(self._entered, with_kwargs=True))
                handles.append(module.register_forward_hook(self._saw_slot, with_kwargs=True))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _entered(self, module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        del module
        self.began.append((len(self.leaves), _versions(args, kwargs)))

    def _saw_part(self, module: nn.Module, args: tuple[object, ...], output: object) -> None:
        if getattr(module, "batch_first", True) is False and args and isinstance(args[0], Tensor):
            self.time_first[module] = args[0].shape[0]
        tensor = main_tensor(output)
        if tensor is not None:
            self.leaves.append((module, tensor.shape))

    def _saw_slot(
        self, module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object], output: object
    ) -> None:
        began, versions = self.began.pop()
        inside = self.leaves[began:]
        seen = self.sightings.setdefault(self.names[id(module)], Sighting(order=self.calls))
        self.calls += 1
        tensor = main_tensor(output)
        if tensor is None or not tensor.is_floating_point():
            what = type(output).__name__ if tensor is None else f"a {tensor.dtype} tensor"
            seen.unusable = f"it returns {what}; a slot needs a floating-point tensor, first in any tuple"
            return
        seen.shapes.append(tensor.shape)
        seen.last = tensor
        seen.dtype, seen.device = tensor.dtype, tensor.device
        form, signature = output_form(output), (len(args), tuple(kwargs))
        if len(seen.shapes) > 1:
            seen.plain_arguments &= signature == (seen.positional, seen.keywords)
            if form != seen.form:
                seen.unusable = f"it returns {form} in one call and {seen.form} in another"
        seen.form = form or seen.form
        seen.positional, seen.keywords = signature
        seen.plain_arguments &= versions == _versions(args, kwargs) and all(
            leaf is None or isinstance(leaf, Tensor | bool | int | float | str)
            for leaf in tree_leaves((args, kwargs))
        )
        seen.telling = _telling(module, tensor.shape, inside) or seen.telling


def _telling(
    slot: nn.Module, shape: torch.Size, inside: list[tuple[nn.Module, torch.Size]]
) -> nn.Module | None:
    """The last part whose type shows what the axes of an output of this shape mean."""
    kinds = _SERIES_MODULES + _TOKEN_MODULES
    square = len(shape) == 3 and shape[1] == shape[2]
    opaque = not isinstance(slot, (*kinds, nn.Sequential))
    # A square looks the same transposed, and a series layer may stand between two transpositions.
    if square and opaque and any(isinstance(part, _SERIES_MODULES) for part, _ in inside):
        return None
    return next((part for part, size in reversed(inside) if size == shape and isinstance(part, kinds)), None)


def _versions(args: tuple[object, ...], kwargs: Mapping[str, object]) -> list[int]:
    """How often each tensor among the arguments has been changed in place."""
    return [leaf._version for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]


def read_layout(name: str, seen: Sighting, asked: Layout | None) -> Layout:
    """What the axes of a slot's output mean: as asked, else by the number of axes and the module's type."""
    axes = len(seen.shapes[0])
    fitting = {2: (Layout.FLAT,), 3: (Layout.SERIES, Layout.TOKENS), 4: (Layout.IMAGE,)}.get(axes, ())
    if not fitting:
        raise WrapError(
            f"slot {name!r} puts out shape {tuple(seen.shapes[0])}; a slot needs 2 axes (flat), 3 (series or "
            "tokens) or 4 (image)"
        )
    if asked is not None:
        if asked not in fitting:
            raise WrapError(
                f"layout {str(asked)!r} does not fit slot {name!r} with output shape {tuple(seen.shapes[0])}; "
                f"fitting: {', '.join(fitting)}"
            )
        layout = asked
    elif axes == 3:
        if seen.telling is None:
            raise WrapError(
                f"slot {name!r} puts out shape {tuple(seen.shapes[0])} and its type does not tell which axis holds "
                f"the channels: pass layout={{{name!r}: 'series'}} (batch, channel, position) or 'tokens' (batch, "
                "position, channel)"
            )
        layout = Layout.SERIES if isinstance(seen.telling, _SERIES_MODULES) else Layout.TOKENS
    else:
        layout = fitting[0]
    if asked is None and layout is Layout.IMAGE and isinstance(seen.telling, _CHANNELS_LAST_MODULES):
        raise WrapError(
            f"slot {name!r} puts out shape {tuple(seen.shapes[0])} with the channels last (a "
            f"{type(seen.telling).__name__}): name an enclosing block that puts out (batch, channel, height, width)"
        )
    return layout


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Eval mode inside; training flags and random states as before afterwards."""
    flags = [(module, module.training) for module in model.modules()]
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
    model_training = model.training
    with torch.random.fork_rng(devices=devices):
        model.eval()
        try:
            yield
        finally:
            model.train(model_training)  # a module may do more than set its flag
            for module, training in flags:
                module.training = training
