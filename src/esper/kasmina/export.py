"""Out of the growing model: a plain module that computes what the model computes now and needs no esper.

A submodule behind a slot stays what and where it is, so whatever the host does with it besides calling it goes on
working: reading its attributes, indexing a container, running a part of it alone. Its seed is called by a forward
hook that is itself an fx GraphModule, and sits in the tree: out of the way of all that run or count their children,
and where something without weights can hold it, of tools that replace layers. A GraphModule would lose a hook when
pickled, so one of those, as a module of Esper's own classes becomes, is replaced by another that holds it as `host`
and calls the seed after it.
"""

import itertools
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.proxy import GraphAppendingTracer

from esper.kasmina.model import GrowingModel
from esper.kasmina.replicas import sharded_modules, whole_copy
from esper.kasmina.seed import Seed, compose_delta, per_channel
from esper.kasmina.slot import Slot
from esper.kasmina.tree import find_seats
from esper.leyline import Layout, Stage
from esper.leyline.files import require_exportable


def export_with_keys(model: GrowingModel) -> tuple[nn.Module, dict[str, str]]:
    """A plain module with the same outputs, and where each key of `model.state_dict()` went.

    Fossilised, holding and blending seeds are part of it at the alpha they have now, a constant from here on.
    Empty slots leave no trace, and neither do seeds in TRAINING, which the output does not show either.
    """
    _refuse_hooks_of_graphs(model)
    twin = whole_copy(model)
    _copy_modes(model, twin)
    for parameter in twin.parameters():
        parameter.grad = None
    held = twin.state_dict(keep_vars=True)
    grown = {
        name: (slot, slot.seed)
        for name, slot in twin.slots.items()
        if slot.seed and slot.stage is not Stage.TRAINING
    }
    for slot, seed in grown.values():
        _refuse(slot, seed)
    host = _plain(twin.unwrap(), {})
    behind = {name: host.get_submodule(name) for name in grown}  # before any of them moves
    leaves = {name: _leaf(host, slot) for name, (slot, _) in grown.items()}
    for name, (slot, seed) in grown.items():
        host = _install(host, behind[name], leaves[name], slot, seed)
    places: dict[int, str] = {}
    for name, tensor in host.state_dict(keep_vars=True).items():
        places.setdefault(id(tensor), name)
    return host, {name: places[id(tensor)] for name, tensor in held.items() if id(tensor) in places}


def _copy_modes(model: nn.Module, twin: nn.Module) -> None:
    """Training and evaluation as in the model: copies of some modules, fx graphs with two codes, forget it."""
    flags = {name: module.training for name, module in model.named_modules()}
    if any(module.training != flags[name] for name, module in twin.named_modules() if name in flags):
        twin.train(model.training)  # a module may do more than set its flag
        for name, module in twin.named_modules():
            module.training = flags.get(name, module.training)


def _refuse(slot: Slot, seed: Seed) -> None:
    """What a plain module could not do as the growing model does."""
    module = slot.site.module
    assert module is not None
    if slot.broken() or not all(parameter.isfinite().all() for parameter in seed.parameters()):
        raise ValueError(
            f"the seed at {slot.name!r} is not finite, and an export would not be guarded: prune it"
        )
    if slot.hook.id != next(reversed(module._forward_hooks)):
        raise ValueError(
            f"slot {slot.name!r} has a hook registered after wrapping, which the export would run before "
            "the seed: remove it, or register it before wrapping"
        )


def _refuse_hooks_of_graphs(model: GrowingModel) -> None:
    """Copies and pickles of fx graphs come without hooks; those that FSDP2 adds are not meant to be copied."""
    slots = {slot.site.module: slot.hook.id for slot in model.slots.values()}
    sharded = set(map(id, sharded_modules(model)))
    for name, module in model.host.named_modules():
        if isinstance(module, fx.GraphModule) and id(module) not in sharded:
            _refuse_hooks(module, f"the fx graph at {name!r}", but=slots.get(module))


def _refuse_hooks(module: nn.Module, name: str, *, but: int | None = None) -> None:
    """Refuse all hooks that a call or its backward pass runs, but for the one with this id."""
    forward = module._forward_pre_hooks.keys() | module._forward_hooks.keys()
    backward = module._backward_pre_hooks.keys() | module._backward_hooks.keys()
    if (forward | backward) - {but}:
        raise ValueError(f"{name} has hooks, which an exported copy would lose: remove them first")


class _Blend(nn.Module):
    """h, the same in the seed's dtype, and the body's output -> y. Traced, never shipped."""

    def __init__(self, seed: Seed, layout: Layout) -> None:
        super().__init__()
        self.scale, self.gate, self.composition = seed.scale, seed.gate, seed.composition
        self.alpha = float(seed.alpha)
        self.layout = layout

    def forward(self, h: Tensor, x: Tensor, d: Tensor) -> Tensor:
        gate = None if self.gate is None else self.gate(x)
        delta = compose_delta(self.composition, x, d * per_channel(self.scale, self.layout), gate).to(h.dtype)
        return h + (delta if self.alpha == 1.0 else self.alpha * delta)


class _OneLevel(fx.Tracer):
    """Traces a module's own forward; whatever it calls stays a call."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:  # noqa: ARG002
        return True


Done = dict[int, tuple[nn.Module, nn.Module]]
"""id -> (original, plain); the original is kept, so that its id is not given away"""


def _plain(module: nn.Module, done: Done) -> nn.Module:
    """The same module without a class of Esper's anywhere in it."""
    if id(module) in done:
        return done[id(module)][1]
    plain = _traced(module) if _is_ours(module) else module
    done[id(module)] = done[id(plain)] = (module, plain)
    for name, child in plain._modules.items():
        if child is not None:
            plain._modules[name] = _plain(child, done)
    return plain


def _is_ours(module: nn.Module) -> bool:
    return type(module).__module__.partition(".")[0] == __name__.partition(".")[0]


def _traced(module: nn.Module) -> fx.GraphModule:
    _refuse_hooks(module, type(module).__name__)
    graph = _OneLevel().trace(module)
    graph._tracer_cls = None  # it would be pickled by name
    plain = fx.GraphModule(module, graph, type(module).__name__)
    plain.training = module.training
    return plain


def _leaf(host: nn.Module, slot: Slot) -> nn.Module | None:
    """What gets the seed as a child; another where that was of Esper's own classes and is a graph by now."""
    if any(module is slot.seat.export_leaf for module in host.modules()):
        return slot.seat.export_leaf
    seat = find_seats(host, {slot.name: frozenset()})[slot.name]
    return None if seat is None else seat.export_leaf


def _install(host: nn.Module, module: nn.Module, leaf: nn.Module | None, slot: Slot, seed: Seed) -> nn.Module:
    """Make a seed part of the plain host, behind `module`."""
    if leaf is None or isinstance(module, fx.GraphModule):
        return _replace(host, module, _grown_graph(slot, seed, around=module))
    grown = _grown_graph(slot, seed)
    leaf.add_module(_free_name(leaf, "seed"), grown)
    # Tools that carry hooks over to another module, as those that quantise do, forget that one takes keywords.
    handle = module.register_forward_hook(grown, with_kwargs=seed.reads_input)
    # Copied and pickled with the module, the handle keeps its id from being given to another hook.
    module.__dict__[_free_name(module, "seed_handle")] = handle
    return host


def _free_name(module: nn.Module, name: str) -> str:
    """The name, or the first of it with a number, that no attribute of the module has."""
    numbered = (f"{name}{number}" for number in itertools.count(1))
    return next(free for free in itertools.chain([name], numbered) if not hasattr(module, free))


def _grown_graph(slot: Slot, seed: Seed, *, around: nn.Module | None = None) -> fx.GraphModule:
    """A forward hook that adds the seed to an output; or a module `around` another, which calls that one first."""
    root = nn.Module()
    done: Done = {}
    root.body = _plain(seed.body, done)
    root.blend = _plain(_Blend(seed, slot.layout), done)
    graph, site = fx.Graph(), slot.site
    tracer = GraphAppendingTracer(graph)

    def given(name: str) -> fx.Proxy:
        return fx.Proxy(graph.placeholder(name), tracer)

    def call(name: str, *args: fx.Proxy, **kwargs: fx.Proxy) -> fx.Proxy:
        return tracer.create_proxy("call_module", name, args, kwargs)

    arguments: list[fx.Proxy] = []
    keywords: dict[str, fx.Proxy] = {}
    if around is None:
        _, args = given("module"), given("args")
        kwargs = given("kwargs") if seed.reads_input else None
        output = given("output")
        if kwargs is not None:
            arguments, keywords = _known_arguments(slot, args, kwargs)
    else:
        root.host = around
        arguments = [given(f"input_{i}") for i in range(site.positional)]
        keywords = {name: given(name) for name in site.keywords}
        output = call("host", *arguments, **keywords)
    h = site.form.pick(output)
    x = h if slot.dtype == seed.scale.dtype else h.to(seed.scale.dtype)
    d = site.form.pick(call("body", *arguments, **keywords)) if seed.reads_input else call("body", x)
    graph.output(site.form.put_back(output, call("blend", h, x, d)).node)
    grown = fx.GraphModule(root, graph, "Seed" if around is None else "Grown")
    grown.training = seed.training
    return grown


def _known_arguments(slot: Slot, args: Any, kwargs: Any) -> tuple[list[fx.Proxy], dict[str, fx.Proxy]]:
    """The arguments of the example's call as proxies, for a body that reads them; other calls are refused."""
    count, names = slot.site.positional, slot.site.keywords
    message = f"the seed behind {slot.name!r} reads its input and knows only calls like the example's"
    keys = kwargs.keys()
    torch._assert(args[count:] == (), message)
    torch._assert((keys ^ names) == (keys ^ keys), message)
    return [args[index] for index in range(count)], {name: kwargs[name] for name in names}


def _replace(host: nn.Module, old: nn.Module, new: nn.Module) -> nn.Module:
    """`host` with every mention of `old` replaced, but for the one inside `new`."""
    for module in list(host.modules()):
        for name, child in module._modules.items():
            if child is old:
                module._modules[name] = new
    return new if host is old else host


# A grown model as a file, whose ending says in which form


ONE_ONNX_FILE = 2**30
"""Bytes of weights up to which a program is one file, easily moved; beyond them ONNX needs a second (.onnx.data)."""


def write_model(model: GrowingModel, path: str | os.PathLike[str], example_input: Tensor) -> None:
    """Write a model that has stopped growing; programs take batches of any size."""
    target = Path(path)
    require_exportable(target)
    if target.suffix == ".safetensors":
        model.detach()  # the optimiser's state is not part of the product
        model.save(target)
        return
    plain = model.export().eval()
    example = torch.empty(example_input.shape, dtype=example_input.dtype)  # strides of its own, not a view's
    example.copy_(example_input.detach())
    batch = ({0: torch.export.Dim.AUTO},)
    # not inference_mode: what the model caches while it is traced may meet autograd later
    with _quiet(), torch.no_grad():
        if target.suffix == ".pt2":
            torch.export.save(torch.export.export(plain, (example,), dynamic_shapes=batch), target)
            return
        size = sum(tensor.numel() * tensor.element_size() for tensor in plain.state_dict().values())
        torch.onnx.export(
            plain,
            (example,),
            target,
            dynamo=True,
            dynamic_shapes=batch,
            external_data=size > ONE_ONNX_FILE,
            verbose=False,
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Both exporters warn about their own internals."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
