"""Architectures we did not write: wrapped, grown at two slots through a whole life, trained, exported.

python benchmarks/bench_architectures.py            # the table, and JSON beside it
python benchmarks/bench_architectures.py --write    # also docs/architectures.md
"""

import argparse
import copy
import io
import time
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import esper
from esper.kasmina import GrowingModel, WrapError
from esper.kasmina.probing import ExampleInput, call_with
from esper.leyline import Layout, Stage
from foreign_models import CASES, Case
from harness import report

BLUEPRINTS = {
    Layout.IMAGE: ("conv_light", "attention"),
    Layout.SERIES: ("conv_light", "attention"),
    Layout.TOKENS: ("attention", "mlp"),
    Layout.FLAT: ("mlp", "lora"),
}
PAGE = Path(__file__).parents[1] / "docs" / "architectures.md"


@dataclass(frozen=True)
class Result:
    architecture: str
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


def same(ours: object, theirs: object) -> bool:
    return all(torch.equal(one, other) for one, other in zip(tensors(ours), tensors(theirs), strict=True))


def difference(ours: object, theirs: object) -> float:
    """The largest relative difference between two outputs."""
    pairs = zip(tensors(ours), tensors(theirs), strict=True)
    return max(
        ((one - other).abs().max() / other.abs().max().clamp(min=1e-12)).item() for one, other in pairs
    )


def live_through(model: GrowingModel, call: nn.Module, example: ExampleInput) -> tuple[bool, bool]:
    """Two seeds through a whole life; whether birth changed nothing, and whether every seed learned."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    model.attach(optimizer)
    model.eval()
    bare = call_with(call, example)
    for index, (name, slot) in enumerate(model.slots.items()):
        wanted = BLUEPRINTS[slot.layout][index % 2]
        model.germinate(name, wanted if wanted in slot.blueprints else next(iter(slot.blueprints)))
    identity = same(call_with(call, example), bare)
    model.tick()
    model.train()
    for _ in range(2):
        optimizer.zero_grad()
        main = tensors(call_with(call, example))[0]
        (main - main.detach().roll(1, 0)).square().mean().backward()
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
    if can_be_pickled(copy.deepcopy(model).unwrap()):
        file = io.BytesIO()
        torch.save(plain, file)
        file.seek(0)
        plain = torch.load(file, weights_only=False)
    return difference(call_with(plain, copy.deepcopy(example)), call_with(model, copy.deepcopy(example)))


def can_be_pickled(module: nn.Module) -> bool:
    try:
        torch.save(module, io.BytesIO())
    except (AttributeError, RuntimeError, TypeError):
        return False
    return True


def run(name: str, case: Case) -> Result:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        host, example = case.build()
        try:
            model = esper.wrap(host, case.slots, example, layout=case.layout, causal=case.causal)
        except WrapError as refusal:
            return Result(name, ", ".join(case.slots), "", "", "", "", case.refused, f"refused: {refusal}")
        compiled = torch.compile(model, backend="aot_eager") if case.compiled else model
        identity, learned = live_through(model, cast(nn.Module, compiled), example)
        exported = export_difference(model, example)
    return Result(
        architecture=name,
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
        return Result(name, ", ".join(case.slots), "", "", "", "", False, message)


def write_page(results: list[Result]) -> None:
    refused = sum(result.note.startswith("refused") for result in results)
    passed = sum(result.passed for result in results) - refused
    lines = [
        "# Architectures",
        "",
        "Architectures we did not write (tiny, random weights), each wrapped, grown at two slots through a whole "
        "life, trained for two steps, exported, pickled and loaded again. Identity: outputs before and after "
        "germination are equal bit for bit. Export: largest relative difference between the model and its export.",
        "",
        f"{passed} of {len(results)} pass, {refused} are refused at wrap time as they should be.",
        "Made by `python benchmarks/bench_architectures.py --write`.",
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
        name: case for name, case in CASES.items() if not options.only or options.only.lower() in name.lower()
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
