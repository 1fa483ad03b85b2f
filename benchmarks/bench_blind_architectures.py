"""Architectures that nobody chose: drawn at random from registries, and put through what bench_architectures does.

python benchmarks/bench_blind_architectures.py --draw 1 --write     # the first draw, and docs/architectures_blind.md
python benchmarks/bench_blind_architectures.py --draw 1 --alone     # which of them run by themselves, without Esper

A later draw takes none of the families and classes of an earlier one, and no draw takes a class of architectures.md.
Each model has a process of its own. What cannot be built by the rules of blind_rules, or does not run and learn by
itself, is left out of the share and counted apart.
"""

import argparse
import copy
import multiprocessing
import os
import re
import time
import warnings
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random

import torch
from torch import nn

from bench_architectures import CASES, attempt, call, choose_slots, installed, summed_loss, tensors
from blind_pools import POOLS
from blind_rules import Make, NotByTheRules, Unit
from esper.kasmina.probing import ExampleInput
from foreign_cases import Case
from harness import report

PAGE = Path(__file__).parents[1] / "docs" / "architectures_blind.md"
MOST_PARAMETERS = 60_000_000
SECONDS = 60
"""For a model to be built and run by itself, and as many again for it to grow."""

OUTCOMES = ("pass", "refused", "crash", "wrong")


@dataclass(frozen=True)
class Drawn:
    package: str
    unit: str
    outcome: str
    """One of OUTCOMES, or `left out`."""
    model: str = ""
    slots: str = ""
    layouts: str = ""
    why: str = ""


class LeftOut(Exception):
    """The model is not in the share, and why."""


def draw(number: int) -> list[tuple[str, Unit]]:
    """The units of a draw, package by package; those of the draws before it are not among them."""
    drawn = []
    for package, (registry, quota) in POOLS.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                left = {unit.name: unit for unit in registry()}
        except (ImportError, OSError, RuntimeError) as missing:  # not there, or built for another torch
            print(f"{package}: {missing}")
            continue
        chosen: list[str] = []
        for earlier in range(1, number + 1):
            left = {name: unit for name, unit in left.items() if name not in chosen}
            chosen = Random(f"draw {earlier} of {package}").sample(sorted(left), min(quota, len(left)))
        drawn += [(package, left[name]) for name in chosen]
    return drawn


def runs_alone(host: nn.Module, example: ExampleInput) -> None:
    """Raise LeftOut where a model by itself does not compute the same twice, or nothing in it learns."""
    host.eval()
    with torch.no_grad():
        first, second = tensors(call(host, example)), tensors(call(host, example))
    if not first or not all(one.numel() and one.isfinite().all() for one in first):
        raise LeftOut("its output is empty or not finite")
    if not all(map(torch.equal, first, second)):
        raise LeftOut("its output is not the same twice in eval mode")
    host.train()
    outputs = call(host, example)
    if not any(output.requires_grad for output in tensors(outputs)):
        raise LeftOut("its output needs no gradient")
    summed_loss(outputs).backward()
    if not any(parameter.grad is not None and parameter.grad.any() for parameter in host.parameters()):
        raise LeftOut("no parameter has a gradient")


def find(package: str, unit: Unit, seed: int, taken: set[str]) -> tuple[str, Case]:
    """The first way in which a unit's model runs by itself, as a case of bench_architectures."""
    reasons = []
    for make in unit.makes(Random(f"{seed} {package} {unit.name}")):
        try:
            host = built(make)
        except LeftOut as left_out:
            reasons.append(str(left_out))
            continue
        except Exception as error:  # whatever a foreign constructor raises
            reasons.append(f"cannot be built: {first_line(error)}")
            continue
        if named(host) in taken:
            raise LeftOut("its class is in architectures.md or in an earlier draw")
        try:
            for example in unit.examples(host):
                try:
                    runs_alone(copy.deepcopy(host), copy.deepcopy(example))
                except LeftOut as left_out:
                    reasons.append(str(left_out))
                except Exception as error:  # whatever a foreign forward raises
                    reasons.append(f"does not run: {first_line(error)}")
                else:
                    return named(host), Case(package, partial(built_with, make, example))
        except Exception as error:
            reasons.append(f"has no example: {first_line(error)}")
    raise LeftOut(reasons[0] if reasons else "has no example: no rule knows what it takes")


def built_with(make: Make, example: ExampleInput) -> tuple[nn.Module, ExampleInput]:
    return built(make), example


def built(make: Make) -> nn.Module:
    """A model of bearable size, always with the same weights."""
    torch.default_generator.manual_seed(0)
    try:
        with torch.device("meta"):
            size = sum(parameter.numel() for parameter in make().parameters())
    except NotByTheRules:
        raise
    except Exception:  # not every constructor can do without numbers
        size = 0
    too_large = LeftOut(f"more than {MOST_PARAMETERS // 10**6} million parameters")
    if size > MOST_PARAMETERS:
        raise too_large
    torch.default_generator.manual_seed(0)
    host = make()
    if sum(parameter.numel() for parameter in host.parameters()) > MOST_PARAMETERS:
        raise too_large
    return host


def named(host: nn.Module) -> str:
    return f"{type(host).__module__}.{type(host).__qualname__}"


def first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]


def without_gradient(case: Case) -> list[str]:
    """The chosen slots whose output has no gradient in the bare model, in two steps like those of a seed's life."""
    host, example = case.build()
    reached: set[str] = set()
    slots = choose_slots(host, example)
    for name in slots:

        def watch(_module: nn.Module, _args: object, output: object, name: str = name) -> None:
            for tensor in tensors(output):
                if tensor.requires_grad:
                    tensor.register_hook(lambda gradient: reached.add(name) if gradient.any() else None)

        host.get_submodule(name).register_forward_hook(watch)
    optimizer = torch.optim.Adam(host.parameters(), lr=1e-3)
    for _ in range(2):
        optimizer.zero_grad()
        summed_loss(call(host.train(), example)).backward()
        optimizer.step()
    return [name for name in slots if name not in reached]


def try_one(package: str, unit: Unit, seed: int, taken: set[str], alone: bool, answer: Connection) -> None:
    """In a process of its own: what became of a unit, said twice, once before Esper meets it."""
    torch.set_num_threads(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    row = Drawn(package, unit.name, "left out")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            name, case = find(package, unit, seed, taken)
        except LeftOut as reason:
            answer.send(replace(row, why=str(reason)))
            return
        row = replace(row, outcome="alone", model=name)
        answer.send(row)
        if alone:
            return
        result = attempt(unit.name, case)
        row = replace(row, slots=result.slots, layouts=result.layouts)
        if result.passed:
            answer.send(replace(row, outcome="pass"))
            return
        outcome, why = "crash", result.note
        if result.note.startswith("refused: "):
            outcome, why = "refused", result.note.removeprefix("refused: ")
        elif result.identity:
            outcome = "wrong"
            why = (
                f"identity {result.identity}, seeds learn {result.trained}, export {result.export_difference}"
            )
        row = replace(row, outcome=outcome, why=why)
        try:
            silent = ", ".join(without_gradient(case))
        except Exception:  # what was wrong is known already
            silent = ""
        if silent:
            row = replace(row, why=f"{why} (no gradient reaches {silent} in the bare model either)")
        answer.send(row)


def play(package: str, unit: Unit, seed: int, taken: set[str], alone: bool) -> Drawn:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=try_one, args=(package, unit, seed, taken, alone, theirs))
    process.start()
    theirs.close()
    row = Drawn(
        package, unit.name, "left out", why=f"longer than {SECONDS} seconds by itself, or its process died"
    )
    try:
        if ours.poll(SECONDS):
            row = ours.recv()
        if row.outcome == "alone" and not alone:
            late = f"longer than {SECONDS} seconds, or its process died"
            row = ours.recv() if ours.poll(SECONDS) else replace(row, outcome="crash", why=late)
    except EOFError:
        if row.outcome == "alone":
            row = replace(row, outcome="crash", why="its process died")
    process.kill()
    process.join()
    return row


def tabled() -> set[str]:
    """The classes of architectures.md."""
    found = set()
    for case in CASES.values():
        if installed(case):
            try:
                with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
                    warnings.simplefilter("ignore")
                    found.add(named(case.build()[0]))
            except Exception as error:  # a package that is there in part
                print(f"a class of architectures.md is not known: {first_line(error)}")
    return found


def of_packages(rows: Iterable[Drawn]) -> list[str]:
    """The table of a draw: what became of its models, package by package."""
    rows = list(rows)
    lines = [
        "| package | pass | refused | crash | wrong | share | left out |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for package in (*dict.fromkeys(row.package for row in rows), ""):
        count = Counter(row.outcome for row in rows if not package or row.package == package)
        tried = sum(count[outcome] for outcome in OUTCOMES)
        share = f"{100 * count['pass'] / tried:.1f} %" if tried else "-"
        cells = [package or "all", *(str(count[o]) for o in OUTCOMES), share, str(count["left out"])]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def section(rows: list[Drawn]) -> list[str]:
    tried = [row for row in rows if row.outcome in OUTCOMES]
    passed = sum(row.outcome == "pass" for row in tried)
    lines = [
        f"{passed} of {len(tried)} pass: {100 * passed / max(len(tried), 1):.1f} %.",
        "",
        *of_packages(rows),
        "",
    ]
    failed = [row for row in tried if row.outcome != "pass"]
    if failed:
        lines += ["| not passed | class | slots | outcome | why |", "| --- | --- | --- | --- | --- |"]
        for row in failed:
            cells = (f"{row.package} {row.unit}", f"`{row.model}`", f"`{row.slots}`", row.outcome, row.why)
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        lines.append("")
    lines.append("Passed:")
    for package in dict.fromkeys(row.package for row in tried):
        names = [f"`{row.model}`" for row in tried if row.package == package and row.outcome == "pass"]
        lines.append(f"- {package}: {', '.join(names) or 'none'}")
    left_out = [re.sub(r":.*", "", row.why) for row in rows if row.outcome == "left out"]
    counted = ", ".join(f"{count} {reason}" for reason, count in Counter(left_out).most_common())
    return [*lines, "", f"Left out: {counted}."]


def marks(number: int) -> tuple[str, str]:
    """What a draw stands between on the page."""
    return f"<!-- draw {number} -->\n", f"<!-- end of draw {number} -->\n"


def classes_of(number: int) -> set[str]:
    """The classes of an earlier draw, as the page has them."""
    begin, end = marks(number)
    return set(re.findall(r"`([\w.]+)`", PAGE.read_text().split(begin)[1].split(end)[0]))


def write_page(number: int, rows: list[Drawn]) -> None:
    """Put a draw between its two marks; the rest of the page is written by hand."""
    begin, end = marks(number)
    page = PAGE.read_text()
    if begin not in page:
        page += f"\n{begin}{end}"
    before, after = page.split(begin)[0], page.split(end)[1]
    PAGE.write_text(before + begin + "\n" + "\n".join(section(rows)) + "\n\n" + end + after)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--draw", type=int, default=1, help="1 is the first")
    parser.add_argument("--quick", action="store_true", help="the first ten only")
    parser.add_argument("--only", default="", help="units whose package and name contain this")
    parser.add_argument("--alone", action="store_true", help="do not let Esper near them")
    parser.add_argument("--write", action="store_true", help="also write docs/architectures_blind.md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    taken = tabled().union(*map(classes_of, range(1, options.draw)))
    rows = []
    for package, unit in draw(options.draw)[: 10 if options.quick else None]:
        if options.only.lower() in f"{package} {unit.name}".lower():
            began = time.perf_counter()
            row = play(package, unit, options.draw, taken, options.alone)
            rows.append(row)
            print(
                f"{package} {unit.name}: {row.outcome} {row.why} ({time.perf_counter() - began:.1f} s)",
                flush=True,
            )
    if not rows:
        print("nothing was drawn: are the packages installed, and does a unit contain what --only says?")
        return
    passed = sum(row.outcome == "pass" for row in rows)
    tried = sum(row.outcome in OUTCOMES for row in rows)
    report(f"blind_{options.draw}", f"{passed} of {tried} pass", [asdict(row) for row in rows])
    if options.write:
        write_page(options.draw, rows)


if __name__ == "__main__":
    main()
