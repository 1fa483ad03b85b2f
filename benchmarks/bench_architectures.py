"""Architectures we did not write: wrapped, grown at two slots through a whole life, trained, exported.

python benchmarks/bench_architectures.py            # the table, and JSON beside it
python benchmarks/bench_architectures.py --write    # also docs/architectures.md

`pip install 'esper-grow[architectures]'` brings the packages; rows of packages that are not there are left out.
"""

import argparse
import copy
import io
import time
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from pickle import PicklingError
from typing import cast

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import esper
from esper.kasmina import GrowingModel, WrapError
from esper.kasmina.probing import ExampleInput, call_with
from esper.kasmina.replicas import whole_copy
from esper.leyline import Stage
from foreign_cases import Case
from foreign_images import CASES as IMAGES
from foreign_models import CASES as MODELS
from foreign_others import CASES as OTHERS
from harness import report

CASES = {**MODELS, **IMAGES, **OTHERS}

WANTED = ("attention", "mlp", "conv_light", "lora")
"""Blueprints that are grown in turn, where the slot offers them."""
PAGE = Path(__file__).parents[1] / "docs" / "architectures.md"


@dataclass(frozen=True)
class Result:
    architecture: str
    package: str
    slots: str
    layouts: str
    identity: str
    trained: str
    export_difference: str
    passed: bool
    note: str


def tensors(output: object) -> list[Tensor]:
    """The floating-point tensors of whatever a model returns."""
    found = tree_leaves(dict(output) if isinstance(output, Mapping) else output)
    return [leaf for leaf in found if isinstance(leaf, Tensor) and leaf.is_floating_point()]


def installed(case: Case) -> bool:
    return find_spec(case.package) is not None


def call(model: nn.Module, example: ExampleInput) -> object:
    """A forward whose randomness, where a model has any, is that of every other such forward."""
    torch.default_generator.manual_seed(1)
    return call_with(model, copy.deepcopy(example))


def has_parameters(module: nn.Module) -> bool:
    return any(True for _ in module.parameters())


def choose_slots(host: nn.Module, example: ExampleInput) -> list[str]:
    """Two blocks of a host: those at a third and at two thirds of its repeated parts, in the order they fire.

    Repeated parts are members of a ModuleList or Sequential that have parts and parameters themselves; in a host
    that has no two of them, any part of the host with parameters; in one whose parameters lie in no part that fires,
    any part.
    """
    names = {id(module): name for name, module in host.named_modules() if name}
    lists = (nn.ModuleList, nn.Sequential)
    members = [child for parent in host.modules() if isinstance(parent, lists) for child in parent.children()]
    blocks = {id(child) for child in members if any(True for _ in child.children()) and has_parameters(child)}
    fired: dict[int, None] = {}
    hooks = [
        module.register_forward_hook(lambda module, _args, _out: fired.setdefault(id(module)))
        for module in host.modules()
    ]
    host.eval()
    with torch.no_grad():
        call(host, example)
    host.train()
    for hook in hooks:
        hook.remove()
    order = [names[key] for key in fired if key in blocks and key in names]
    if len(order) < 2:
        order = [
            names[key] for key in fired if key in names and has_parameters(host.get_submodule(names[key]))
        ]
    order = order or [names[key] for key in fired if key in names]
    return list(dict.fromkeys((order[len(order) // 3], order[2 * len(order) // 3])))


def same(ours: object, theirs: object) -> bool:
    return all(torch.equal(one, other) for one, other in zip(tensors(ours), tensors(theirs), strict=True))


def difference(ours: object, theirs: object) -> float:
    """The largest relative difference between two outputs."""
    pairs = zip(tensors(ours), tensors(theirs), strict=True)
    return max(
        ((one - other).abs().max() / other.abs().max().clamp(min=1e-12)).item() for one, other in pairs
    )


def summed_loss(output: object) -> Tensor:
    """Of all that a model returns: how far it is from a ramp."""
    outputs = [tensor for tensor in tensors(output) if tensor.requires_grad]
    losses = [(out - torch.linspace(-1, 1, out.numel()).view_as(out)).square().mean() for out in outputs]
    return torch.stack(losses).sum()


def live_through(model: GrowingModel, module: nn.Module, example: ExampleInput) -> tuple[bool, bool]:
    """Two seeds through a whole life; whether birth changed nothing, and whether every seed learned.

    module  what is called: the model, or a compiled form of it
    """
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    model.attach(optimizer)
    model.eval()
    bare = call(module, example)
    for index, (name, slot) in enumerate(model.slots.items()):
        serving = [blueprint for blueprint in WANTED if blueprint in slot.blueprints]
        model.germinate(name, serving[index % len(serving)])
    identity = same(call(module, example), bare)
    model.tick()
    model.train()
    for _ in range(2):
        optimizer.zero_grad()
        summed_loss(call(module, example)).backward()
        optimizer.step()
    learned = all(bool(slot.seed.scale.any()) for slot in model.slots.values() if slot.seed)
    for name in model.slots:
        model.advance(name)
    while any(slot.stage is not Stage.HOLDING for slot in model.slots.values()):
        model.tick()
    for name in model.slots:
        model.fossilize(name)
    return identity, learned


@torch.no_grad()
def export_difference(model: GrowingModel, example: ExampleInput) -> float:
    """Between the model and its export, after the export has been through a pickle where the host can go."""
    plain = model.eval().export()
    if can_be_pickled(whole_copy(model).unwrap()):
        file = io.BytesIO()
        torch.save(plain, file)
        file.seek(0)
        plain = torch.load(file, weights_only=False)
    return difference(call(plain, example), call(model, example))


def can_be_pickled(module: nn.Module) -> bool:
    try:
        torch.save(module, io.BytesIO())
    except (AttributeError, RuntimeError, TypeError, PicklingError):
        return False
    return True


def run(name: str, case: Case) -> Result:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        host, example = case.build()
        slots = case.slots or choose_slots(host, example)
        try:
            model = esper.wrap(host, slots, example, layout=case.layout, causal=case.causal)
        except WrapError as refusal:
            message = f"refused: {refusal}"
            return Result(name, case.package, ", ".join(slots), "", "", "", "", case.refused, message)
        compiled = torch.compile(model, backend="aot_eager") if case.compiled else model
        identity, learned = live_through(model, cast(nn.Module, compiled), example)
        exported = export_difference(model, example)
    return Result(
        architecture=name,
        package=case.package,
        slots=", ".join(model.slots),
        layouts=", ".join(dict.fromkeys(str(slot.layout) for slot in model.slots.values())),
        identity="equal" if identity else "DIFFERENT",
        trained="yes" if learned else "NO",
        export_difference=f"{exported:.1g}" if exported else "0",
        passed=identity and learned and exported < 1e-6,
        note=case.note
        or ("" if can_be_pickled(host) else "the host cannot be pickled, so neither can its export"),
    )


def attempt(name: str, case: Case) -> Result:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return run(name, case)
    except Exception as error:  # the table shows what broke, and goes on
        message = f"{type(error).__name__}: {error}".splitlines()[0][:160]
        return Result(name, case.package, ", ".join(case.slots), "", "", "", "", False, message)


def write_page(results: list[Result]) -> None:
    refused = sum(result.passed and result.note.startswith("refused") for result in results)
    passed = sum(result.passed for result in results) - refused
    packages = sorted({result.package for result in results})
    lines = [
        "# Architectures",
        "",
        "Architectures we did not write (tiny, random weights), each wrapped without a hint, grown at two slots "
        "through a whole life, trained for two steps, exported, pickled and loaded again. Slots are named by hand or "
        "chosen by a rule: two blocks, at a third and at two thirds of the model. Identity: outputs before and after "
        "germination are equal bit for bit. Export: largest relative difference between the model and its export. "
        "Seeds learn: their scales have moved after two steps.",
        "",
        f"{passed} of {len(results)} pass, {refused} are refused at wrap time with a word on what to do, "
        f"{len(results) - passed - refused} fail. Packages: {len(packages)} ({', '.join(packages)}).",
        "The list was put together while layouts were added, and models that could not be built small were left out: "
        "it says what works. Which share of models that nobody has tried does is measured by drawing them: "
        "[architectures that nobody chose](architectures_blind.md).",
        "Made by `pip install 'esper-grow[architectures]'` and `python benchmarks/bench_architectures.py --write`.",
        "",
        "| architecture | slots | layout | identity | seeds learn | export | note |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for r in results:
        cells = (
            r.architecture,
            f"`{r.slots}`",
            r.layouts,
            r.identity,
            r.trained,
            r.export_difference,
            r.note,
        )
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    PAGE.write_text("\n".join(lines) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="the first ten only")
    parser.add_argument("--only", help="architectures whose name contains this")
    parser.add_argument("--write", action="store_true", help="also write docs/architectures.md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    chosen = {
        name: case
        for name, case in CASES.items()
        if installed(case) and (not options.only or options.only.lower() in name.lower())
    }
    results = []
    for name in list(chosen)[: 10 if options.quick else None]:
        began = time.perf_counter()
        result = attempt(name, chosen[name])
        results.append(result)
        verdict = "ok" if result.passed else result.note
        print(f"{name}: {verdict} ({time.perf_counter() - began:.1f} s)", flush=True)
    report(
        "architectures",
        f"{sum(r.passed for r in results)} of {len(results)} pass",
        [asdict(r) for r in results],
    )
    if options.write:
        write_page(results)
    return sum(not result.passed for result in results)


if __name__ == "__main__":
    raise SystemExit(main())
