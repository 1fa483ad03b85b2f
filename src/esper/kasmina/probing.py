"""Forwards of the example through the bare host, to see what passes through each slot."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.weak import WeakTensorKeyDictionary

from esper.kasmina import axes
from esper.kasmina.axes import Part, WrapError
from esper.kasmina.blueprints.registry import PLAIN, OutputForm, main_tensor, output_forms
from esper.kasmina.model import untouched

ExampleInput = Tensor | tuple[object, ...] | list[object] | Mapping[str, object]


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
    forms: list[OutputForm] = field(default_factory=list)
    """Of all the floating-point tensors that it returned."""
    positional: int = 0
    keywords: tuple[str, ...] = ()
    channels: int | None = None
    """The axis of the channels; None if nothing shows it."""
    batch: frozenset[int] = frozenset((0,))
    """The axes that grow with the samples."""
    samples_in_order: bool = True
    """The entries of the batch axis are the samples of the example's first axis, in order."""
    last: Tensor | None = None
    """The activation of the last call."""
    sealed: frozenset[nn.Module] = frozenset()
    """What ran within a function whose backward pass is written by hand, which this submodule is not part of."""
    unusable: str | None = None


def call_with(model: nn.Module, example: ExampleInput) -> object:
    """Call a model with a tensor, a tuple of arguments or a mapping of keyword arguments."""
    if isinstance(example, Mapping):
        return model(**example)
    if isinstance(example, tuple | list):
        return model(*example)
    return model(example)


def _described(example: ExampleInput) -> str:
    """The shapes of its tensors, in words."""
    shapes = [str(tuple(leaf.shape)) for leaf in tree_leaves(example) if isinstance(leaf, Tensor)]
    return f"shape {', '.join(shapes)}" if shapes else type(example).__name__


def batch_size(example: ExampleInput, axis: int = 0) -> int:
    """Samples in the example: the length of an axis, the first by default, of its first tensor that has it."""
    tensors = (leaf for leaf in tree_leaves(example) if isinstance(leaf, Tensor))
    tensor = next((leaf for leaf in tensors if leaf.ndim > axis), None)
    if tensor is None:
        raise WrapError(
            f"example_input is a {type(example).__name__} without a tensor that has a batch axis; expected a tensor "
            "such as inputs[:2], a tuple of arguments or a dict of keyword arguments"
        )
    if tensor.shape[axis] == 0:
        raise WrapError(
            f"example_input is an empty batch, shape {tuple(tensor.shape)}: give at least one sample"
        )
    return tensor.shape[axis]


def probe(model: nn.Module, slots: Mapping[str, nn.Module], example: ExampleInput) -> dict[str, Sighting]:
    """Run the example in eval mode, leaving no trace; what fired, by slot name, in firing order.

    Two more forwards, one with a sample more and one with the samples in reverse, show which axis is the batch.
    """
    try:
        watch = _watched(model, slots, example, {})
    except WrapError:
        raise
    except Exception as error:
        raise WrapError(
            f"example_input ({_described(example)}) does not go through the model: {type(error).__name__}: {error}"
        ) from error
    several = {name: seen.forms for name, seen in watch.sightings.items() if len(seen.forms) > 1}
    forms = {name: _used_form(model, slots[name], example, found) for name, found in several.items()}
    if any(form != watch.sightings[name].form for name, form in forms.items()):
        watch = _watched(model, slots, example, forms)
    answers = _ask(model, slots, example, forms, axis=0)
    time_first = answers.larger is not None and any(
        rows != watch.time_first.get(part, rows) for part, rows in answers.larger.time_first.items()
    )
    if time_first:  # as a module with batch_first=False reads the example
        answers = _ask(model, slots, example, forms, axis=1)
    for name, seen in watch.sightings.items():
        if seen.unusable is None:
            _read_batch(seen, answers, name)
            seen.samples_in_order &= not time_first
            seen.channels = watch.channels(name, slots[name])
        if slots[name] not in watch.sealed:
            seen.sealed = frozenset(watch.sealed)
    return dict(sorted(watch.sightings.items(), key=lambda item: item[1].order))


@dataclass(frozen=True, slots=True)
class _Answers:
    """What was seen with a sample more, and with the samples in reverse; None where the host refused it."""

    samples: int
    larger: "_Watch | None"
    reversed: "_Watch | None"


def _used_form(
    model: nn.Module, module: nn.Module, example: ExampleInput, forms: list[OutputForm]
) -> OutputForm:
    """Of several tensors that a submodule returns, the first one on which the model's output depends."""

    def outputs(form: OutputForm | None) -> list[Tensor]:
        def shift(_module: nn.Module, _args: object, output: object) -> object:
            if form is None:
                return output
            tensor: Tensor = form.pick(output)
            ramp = torch.linspace(1.0, 2.0, tensor.numel(), device=tensor.device)  # which no norm takes out
            return form.put_back(output, tensor + ramp.view_as(tensor).to(tensor.dtype))

        hook = module.register_forward_hook(shift)
        try:
            with untouched(model), torch.no_grad():
                found = call_with(model, example)
        finally:
            hook.remove()
        return [leaf for leaf in tree_leaves(found) if isinstance(leaf, Tensor)]

    bare = outputs(None)
    for form in forms:
        shifted = outputs(form)
        if len(bare) != len(shifted) or not all(map(torch.equal, bare, shifted)):
            return form
    return forms[0]


def _ask(
    model: nn.Module,
    slots: Mapping[str, nn.Module],
    example: ExampleInput,
    forms: Mapping[str, OutputForm],
    *,
    axis: int,
) -> _Answers:
    samples = batch_size(example, axis)

    def watched(change: Callable[[Tensor], Tensor]) -> "_Watch | None":
        try:
            return _watched(model, slots, rebatched(example, samples, change, axis), forms)
        except Exception:  # a host may insist on its batch size
            return None

    return _Answers(
        samples,
        watched(lambda t: torch.cat([t, t.narrow(axis, 0, 1)], axis)),
        watched(lambda t: t.flip(axis)),
    )


def _read_batch(seen: Sighting, answers: _Answers, name: str) -> None:
    """Which axes of a slot's output grow with the samples, and whether the samples lie there in order."""
    more = None if answers.larger is None else answers.larger.sightings.get(name)
    back = None if answers.reversed is None else answers.reversed.sightings.get(name)
    growing = None if more is None else axes.growing_axes(seen.shapes, more.shapes)
    if growing is None:  # no answer: rows that the samples divide are taken for theirs
        growing = frozenset() if any(shape[0] % answers.samples for shape in seen.shapes) else frozenset((0,))
    seen.batch = growing
    if len(growing) != 1:
        seen.samples_in_order = False
    elif back is not None and seen.last is not None and back.last is not None:
        (axis,) = growing
        seen.samples_in_order = axes.in_order(seen.last, back.last, axis, answers.samples)


def _watched(
    model: nn.Module,
    slots: Mapping[str, nn.Module],
    example: ExampleInput,
    forms: Mapping[str, OutputForm],
) -> "_Watch":
    watch = _Watch(slots, forms)
    # not inference_mode: caches may meet autograd
    with untouched(model), watch.hooks(model), torch.no_grad():
        call_with(model, example)
    return watch


def rebatched(
    example: ExampleInput, samples: int, change: Callable[[Tensor], Tensor], axis: int = 0
) -> ExampleInput:
    """The example with `change` done to every tensor that has the samples along `axis`."""

    def apply(tensor: Tensor) -> Tensor:
        return change(tensor) if tensor.ndim > axis and tensor.shape[axis] == samples else tensor

    changed: ExampleInput = tree_map_only(Tensor, apply, example)
    return changed


class _Watch:
    """Temporary hooks that fill the sightings."""

    def __init__(self, slots: Mapping[str, nn.Module], forms: Mapping[str, OutputForm]) -> None:
        self.forms = forms
        """Where the main tensor is, in outputs of slots that hold several."""
        self.names = {id(module): name for name, module in slots.items()}
        self.sightings: dict[str, Sighting] = {}
        self.calls = 0
        self.parts: list[Part] = []
        self.began: list[tuple[int, list[int]]] = []
        self.time_first: dict[nn.Module, int] = {}
        """module that reads time on its first axis -> the length of that axis"""
        self.sealed: set[nn.Module] = set()
        """What ran within a `torch.autograd.Function`"""
        self.shown: dict[str, dict[str, int | None]] = {}
        """slot -> where its channels are, as shown inside, by what takes its output and by what gave its input"""
        self._known = WeakTensorKeyDictionary()  # activation -> the axis of its channels
        self._from = WeakTensorKeyDictionary()  # activation -> the slots that put it out

    def channels(self, name: str, module: nn.Module) -> int | None:
        """The axis of a slot's channels: as its parts show it, its follower, its forerunner, or its own widths."""
        shown = self.shown.get(name, {})
        for source in ("inside", "after", "before"):
            axis = shown.get(source)
            if axis is not None:
                return axis
        widths = {width for part in module.modules() for width in axes.own_widths(part)}
        shape = self.sightings[name].shapes[0]
        return axes.axis_of_widths(widths, shape) if len(shape) > 2 else None

    @contextmanager
    def hooks(self, model: nn.Module) -> Iterator[None]:
        handles = []
        for module in model.modules():
            handles.append(module.register_forward_pre_hook(self._takes, with_kwargs=True))
            handles.append(module.register_forward_hook(self._saw_part, with_kwargs=True))
            if id(module) in self.names:
                handles.append(module.register_forward_pre_hook(self._entered, with_kwargs=True))
                handles.append(module.register_forward_hook(self._saw_slot, with_kwargs=True))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _takes(self, module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """What takes a slot's output shows what its axes mean."""
        for tensor in _tensors(args, kwargs):
            for slot in self._from.get(tensor, ()):
                if self.shown[slot].get("after") is None:
                    self.shown[slot]["after"] = axes.taken_channels(module, tensor)

    def _entered(self, module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        del module
        self.began.append((len(self.parts), _versions(args, kwargs)))

    def _saw_part(
        self, module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object], output: object
    ) -> None:
        # A Function's forward turns it off, as inference mode does, and `no_grad` does not.
        if not torch._C._is_fwd_grad_enabled() and not torch.is_inference_mode_enabled():
            self.sealed.add(module)
        if getattr(module, "batch_first", True) is False and args and isinstance(args[0], Tensor):
            self.time_first[module] = args[0].shape[0]
        tensor = main_tensor(output)
        if tensor is None:
            return
        channels = axes.put_out_channels(module, tensor)
        self.parts.append(Part(module, tensor.shape, channels))
        if channels is not None:
            self._known[tensor] = channels
        elif not any(True for _ in module.parameters()):
            self._pass_on(module, tensor, _tensors(args, kwargs))

    def _pass_on(self, module: nn.Module, output: Tensor, taken: list[Tensor]) -> None:
        """An activation function or the like: what is known of its input is known of its output."""
        for tensor in taken:
            if tensor.shape == output.shape and axes.keeps_axes(module, output.shape):
                for known in (self._known, self._from):
                    if tensor in known and output not in known:
                        known[output] = known[tensor]

    def _saw_slot(
        self, module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object], output: object
    ) -> None:
        name = self.names[id(module)]
        began, versions = self.began.pop()
        seen = self.sightings.setdefault(name, Sighting(order=self.calls))
        self.calls += 1
        seen.forms = output_forms(output)
        form = self.forms.get(name) or (seen.forms[0] if seen.forms else PLAIN)
        if form not in seen.forms:
            what = f"a {output.dtype} tensor" if isinstance(output, Tensor) else type(output).__name__
            seen.unusable = f"it returns {what}; a slot needs a floating-point tensor"
            return
        tensor: Tensor = form.pick(output)
        seen.shapes.append(tensor.shape)
        seen.last = tensor
        seen.dtype, seen.device = tensor.dtype, tensor.device
        signature = (len(args), tuple(kwargs))
        if len(seen.shapes) > 1:
            seen.plain_arguments &= signature == (seen.positional, seen.keywords)
            if form != seen.form:
                seen.unusable = f"it returns {form} in one call and {seen.form} in another"
        seen.form = form
        seen.positional, seen.keywords = signature
        seen.plain_arguments &= versions == _versions(args, kwargs) and all(
            leaf is None or isinstance(leaf, Tensor | bool | int | float | str)
            for leaf in tree_leaves((args, kwargs))
        )
        self._note_channels(name, module, tensor, _tensors(args, kwargs), self.parts[began:])

    def _note_channels(
        self, name: str, module: nn.Module, output: Tensor, taken: list[Tensor], parts: list[Part]
    ) -> None:
        shown = self.shown.setdefault(name, {})
        shown["inside"] = axes.channels_inside(module, output.shape, parts) or shown.get("inside")
        if axes.keeps_axes(module, output.shape):
            before = (self._known.get(tensor) for tensor in taken if tensor.shape == output.shape)
            shown["before"] = next((axis for axis in before if axis is not None), shown.get("before"))
        self._from[output] = (*self._from.get(output, ()), name)


def _tensors(args: tuple[object, ...], kwargs: Mapping[str, object]) -> list[Tensor]:
    return [given for given in (*args, *kwargs.values()) if isinstance(given, Tensor)]


def _versions(args: tuple[object, ...], kwargs: Mapping[str, object]) -> list[int]:
    """How often each tensor among the arguments has been changed in place."""
    return [leaf._version for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
