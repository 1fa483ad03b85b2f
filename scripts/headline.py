"""The result in README.md, the tables in docs/benchmark.md and the picture, from the benchmarks' rows alone.

python scripts/headline.py            writes them, and docs/headline.svg
"""

import textwrap
from html import escape
from pathlib import Path

from esper.benchmark import BenchTable, gate, read_bench, verdict
from esper.benchmark.table import ArmSummary

ROOT = Path(__file__).parents[1]
EVIDENCE = ROOT / "benchmarks" / "evidence"
README, PAGE, PICTURE = ROOT / "README.md", ROOT / "docs" / "benchmark.md", ROOT / "docs" / "headline.svg"
WORDS = {
    "wait": "never grow",
    "random": "random legal operations",
    "periodic": "rule: grow every few epochs",
    "plateau": "rule: grow on a plateau",
    "fit_ratio": "rule: grow while it underfits",
    "probe_and_keep": "rule: try, measure, keep or prune",
    "detect_then_probe": "rule: try, measure, keep or prune after a drop",
    "sbs": "the single best schedule",
    "sbs_hindsight": "the single best schedule in hindsight",
    "vbs": "the best schedule of each instance",
    "learned": "**learned controller**",
    "cpu_v1": "learned on `cpu`, unchanged",
    "warm": "learned, begun as a clone of a rule",
    "static": "equal size: a wider host",
    "from_birth": "equal size: its seeds, from birth",
    "from_scratch": "equal size: its networks, from scratch",
    "random_matched": "equal size: random seeds",
    "blind": "its decisions on another instance",
    "by_layout": "rule: the Grower's default",
    "frozen_spread": "rule: the Grower's for frozen hosts",
    "look_once": "a linear rule at one early epoch",
    "try_2": "two whole runs, the better kept",
    "try_3": "three whole runs, the best kept",
    "try_5": "five whole runs, the best kept",
    "successive_halving": "five runs, halved twice",
}
Tables = tuple[BenchTable, ...]
ROW, LEFT, RIGHT, TOP = 26, 350, 900, 46


def verdict_text(tables: Tables) -> str:
    """The verdict in a few sentences."""
    whole, inside = tables[0], next(each for each in tables if each.subset == "inside the training ranges")
    over_waiting, rival, cost, share, *_ = verdict(whole)
    _, rival_within, _, share_within, *_ = verdict(inside)
    within = f"Inside the training ranges: {_lowered(rival_within)} {share_within}"
    return textwrap.fill(f"{gate(whole)} {_raised(over_waiting)} {rival} {cost} {share} {within}", 118)


def result_line(tables: Tables) -> str:
    """How far the learned controllers are over waiting, and over the best rival of no more training."""
    over_waiting, rival, *_ = verdict(tables[0])
    return textwrap.fill(f"{_raised(over_waiting)} {rival}", 118)


def _raised(sentence: str) -> str:
    return sentence[0].upper() + sentence[1:]


def _lowered(sentence: str) -> str:
    return sentence[0].lower() + sentence[1:]


def arm_table(tables: Tables) -> str:
    """All arms on all instances, the best first."""
    rows = [
        "| | utility over waiting, points | accuracy | parameters | training GFLOP |",
        "| --- | --- | --- | --- | --- |",
        *(_line(arm) for arm in _ordered(tables[0])),
    ]
    return "\n".join(rows)


def _line(arm: ArmSummary) -> str:
    flops = "" if arm.training_flops is None else f"{arm.training_flops / 1e9:.1f}"
    accuracy = "" if arm.test_accuracy is None else f"{100 * arm.test_accuracy:.1f}"
    parameters = "" if arm.parameters is None else f"{arm.parameters:,.0f}"
    name = WORDS.get(arm.arm, arm.arm)
    return f"| {name} (`{arm.arm}`) | {_points(arm)} | {accuracy} | {parameters} | {flops} |"


def _points(arm: ArmSummary) -> str:
    if arm.arm == "wait":
        return "0"
    value, low, high = (100 * each for each in (arm.over_wait.value, arm.over_wait.low, arm.over_wait.high))
    return f"{value:+.1f} [{low:+.1f}, {high:+.1f}]"


def _ordered(table: BenchTable) -> list[ArmSummary]:
    """Without the runs that only the tries are made of."""
    shown = (arm for arm in table.arms if not arm.arm.startswith("schedule_"))
    return sorted(shown, key=lambda arm: -arm.over_wait.value)


def picture(table: BenchTable) -> str:
    """Each arm's gain over waiting with its 95 % interval, best first."""
    arms = [arm for arm in _ordered(table) if arm.arm != "wait"]
    low = min(arm.over_wait.low for arm in arms) * 100
    high = max(arm.over_wait.high for arm in arms) * 100
    first, last = int(low) - 1, int(high) + 1

    def x(points: float) -> float:
        return LEFT + (points - first) / (last - first) * (RIGHT - LEFT)

    bottom = TOP + ROW * len(arms)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 960 {bottom + 44}" '
        f'font-family="system-ui, sans-serif" font-size="14" role="img" '
        f'aria-label="Utility over waiting of each arm, with 95 % intervals">',
        f'<rect width="960" height="{bottom + 44}" rx="14" fill="#ffffff"/>',
        f'<text x="24" y="28" font-weight="700" fill="#1a1a1a">Utility over never growing, in points, on '
        f"{len(table.instances)} unseen instances x {table.seeds} hosts</text>",
    ]
    for tick in range(first, last + 1):
        colour = "#444" if tick == 0 else "#ddd"
        parts.append(f'<path d="M{x(tick):.1f} {TOP - 6} V{bottom + 4}" stroke="{colour}"/>')
        parts.append(
            f'<text x="{x(tick):.1f}" y="{bottom + 24}" text-anchor="middle" fill="#444">{tick:+d}</text>'
        )
    for place, arm in enumerate(arms):
        y, told = TOP + ROW * (place + 0.5), WORDS.get(arm.arm, arm.arm).replace("**", "")
        ours = arm.arm == "learned"
        colour, weight = ("#0072b2", 700) if ours else ("#6c757d", 400)
        value, near, far = (
            x(100 * each) for each in (arm.over_wait.value, arm.over_wait.low, arm.over_wait.high)
        )
        parts += [
            f'<text x="{LEFT - 16}" y="{y + 5:.1f}" text-anchor="end" font-weight="{weight}" fill="#222">'
            f"{escape(told)}</text>",
            f'<path d="M{near:.1f} {y:.1f} H{far:.1f}" stroke="{colour}" stroke-width="3"/>',
            f'<circle cx="{value:.1f}" cy="{y:.1f}" r="{7 if ours else 5}" fill="{colour}"/>',
        ]
    return "\n".join([*parts, "</svg>", ""])


def with_section(text: str, name: str, made: str) -> str:
    """The text with what stands between the marks of that name made anew."""
    begin, end = f"<!-- {name}: made by scripts/headline.py -->", f"<!-- /{name} -->"
    before, begun, rest = text.partition(begin)
    _, ended, after = rest.partition(end)
    if not begun or not ended:
        raise ValueError(f"{begin} or {end} is missing")
    return f"{before}{begin}\n{made}\n{end}{after}"


def written() -> dict[Path, str]:
    """File -> what it is to say."""
    cpu, shift = (read_bench(EVIDENCE / suite).tables for suite in ("cpu", "shift"))
    page = PAGE.read_text()
    for name, tables in (("cpu", cpu), ("shift", shift)):
        page = with_section(page, name, f"{verdict_text(tables)}\n\n{arm_table(tables)}")
    return {
        README: with_section(README.read_text(), "result", result_line(cpu)),
        PAGE: page,
        PICTURE: picture(cpu[0]),
    }


def main() -> None:
    for path, text in written().items():
        path.write_text(text)


if __name__ == "__main__":
    main()
