"""One forward of the example through the bare host, to see what passes through each slot."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from esper.kasmina.blueprints.registry import PLAIN, OutputForm, main_tensor, output_form
from esper.kasmina.model import untouched
from esper.leyline import Layout
from esper.leyline.errors import EsperError

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


class WrapError(EsperError, ValueError):
    """The model, a slot name or the example cannot be wrapped as asked."""


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
