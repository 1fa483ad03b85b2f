"""docs/life_of_a_network.svg: one network whose data change three times, as it was recorded, moving.

python scripts/life_of_a_network.py             draws the record
python scripts/life_of_a_network.py --record    records it anew with examples/sensor_stream.py first: half a minute

The picture plays by CSS alone, and begins with the pause at its end: its first frame, and what is shown where nothing
moves (on paper; for readers who want less motion), is the whole picture.
"""

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from html import escape
from itertools import groupby, pairwise
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, TypeVar

from pydantic import TypeAdapter

from esper.karn.drawing import DARK, LIGHT, STAGES, Theme
from esper.leyline.slots import VERMILION

if TYPE_CHECKING:
    from sensor_stream import Life

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "benchmarks" / "evidence" / "life.json"
PICTURE = ROOT / "docs" / "life_of_a_network.svg"
EPOCHS, BUDGET = 120, 1500
CHANGES = ((30, "wired anew"), (60, "another sensor"), (90, "wired anew"))
"""Epochs trained before a change of sensor_stream.py, and its name."""
PRUNED = "PRUNED"
"""Of a seed: that it fades out, or is gone."""
WORDS = {
    "TRAINING": "training",
    "BLENDING": "blending",
    "HOLDING": "holding",
    "FOSSILIZED": "fossilised",
    PRUNED: "pruned",
}
"""Stage of a seed -> the word below it."""
COLOURS = {**STAGES, PRUNED: VERMILION}

SECONDS, PLAYED = 30, 80
"""Length of the film, and the percentage of it that is not the pause at its end, in which the whole is shown."""
WIDTH, HEIGHT = 960, 408
LEFT, RIGHT, TOP, BOTTOM = 70, 790, 204, 318
"""Of the plot of accuracy."""
LANES, LANE = 330, 18
"""Where the slots' lanes begin, and how high one is."""
RAIL = 122
"""Where the activations pass."""


@dataclass(frozen=True)
class Standing:
    """A slot at the end of an epoch."""

    stage: str
    blueprint: str | None
    alpha: float


@dataclass(frozen=True)
class Decided:
    """An operation that was decided after an epoch."""

    epoch: int
    operation: str
    slot: str
    blueprint: str | None
    reason: str


@dataclass(frozen=True)
class Record:
    """Of a network that may grow, and of the same one without growth; lists have an entry an epoch."""

    windows: list[list[float]]
    """A window of the sensor in each phase, noise left out."""
    host_parameters: int
    alone: list[float]
    """Accuracy of the network that does not grow, 0..1."""
    grown: list[float]
    added_parameters: list[int]
    slots: dict[str, list[Standing]]
    decisions: list[Decided]
    """Without those to wait."""


RECORDS = TypeAdapter(Record)
Seen = TypeVar("Seen")


@dataclass(frozen=True)
class Seed:
    """The life of one seed."""

    slot: str
    blueprint: str
    first: int
    """Index of the first epoch that it was there in."""
    standings: list[Standing]
    """One an epoch, PRUNED from the decision on."""
    pruned: int | None
    """Epochs trained when it was pruned."""

    @property
    def last(self) -> int:
        """Index of the epoch after the last that it was there in."""
        return self.first + len(self.standings)

    def spans(self, seen: Callable[[Standing], Seen]) -> list[tuple[Seen, int, int]]:
        """What is seen of it, and the epochs (from, until) in which that stays the same."""
        found, begin = [], self.first
        for value, same in groupby(self.standings, seen):
            end = begin + len(list(same))
            found.append((value, begin, end))
            begin = end
        return found


# Recording


def record() -> Record:
    """Train the network of sensor_stream.py with and without growth."""
    sys.path.append(str(ROOT / "examples"))
    import torch

    import sensor_stream

    torch.set_num_threads(1)
    return recorded(sensor_stream.live(0, EPOCHS, budget=BUDGET), sensor_stream.live(0, EPOCHS))


def recorded(grown: "Life", alone: "Life") -> Record:
    """What the picture needs of two lives."""
    import torch

    import sensor_stream

    windows = [
        replace(sensor, noise=0.0).windows(1, torch.Generator().manual_seed(0))[0].flatten().tolist()
        for sensor in sensor_stream.mountings(0)
    ]
    first, *_ = history = grown.decisions
    return Record(
        windows=[[round(point, 3) for point in window] for window in windows],
        host_parameters=alone.most_parameters,
        alone=[round(accuracy, 4) for accuracy in alone.accuracies],
        grown=[round(accuracy, 4) for accuracy in grown.accuracies],
        added_parameters=[decision.added_parameters for decision in history],
        slots={
            name: [
                Standing(slot.stage.name, slot.blueprint, round(slot.alpha, 3))
                for slot in (decision.slots[name] for decision in history)
            ]
            for name in first.slots
        },
        decisions=[
            Decided(
                decision.epoch, action.op.name, str(action.slot), action.blueprint or None, decision.reason
            )
            for decision in history
            if (action := decision.action).op.name != "WAIT"
        ],
    )


# What was recorded, as lives


def seeds_of(found: Record) -> list[Seed]:
    """Every seed that was there at the end of an epoch, by its birth."""
    prunings = {(each.slot, each.epoch) for each in found.decisions if each.operation == "PRUNE"}
    seeds: list[Seed] = []
    for slot, standings in found.slots.items():
        lives = groupby(enumerate(standings), lambda entry: entry[1].blueprint)
        for blueprint, entries in ((blueprint, list(entries)) for blueprint, entries in lives if blueprint):
            first, last = entries[0][0], entries[-1][0] + 1
            pruned = next((epoch for epoch in range(first, last + 1) if (slot, epoch) in prunings), None)
            shown = [
                each if pruned is None or epoch_idx < pruned else replace(each, stage=PRUNED)
                for epoch_idx, each in entries
            ]
            seeds.append(Seed(slot, blueprint, first, shown, pruned))
    return sorted(seeds, key=lambda seed: seed.first)


def fate(seed: Seed) -> str:
    """Its life in words."""
    if seed.pruned is not None:
        until = f"pruned after epoch {seed.pruned}"
    else:
        until = f"kept from epoch {_kept(seed) + 1} on" if _kept(seed) else "still on trial at the end"
    return f"{seed.blueprint} at {seed.slot}, germinated after epoch {seed.first}, {until}"


def _kept(seed: Seed) -> int:
    """Index of the first epoch in which it was a fossil; 0 if it was none."""
    stages = [standing.stage for standing in seed.standings]
    return seed.first + stages.index("FOSSILIZED") if "FOSSILIZED" in stages else 0


# The film


def moment(epoch: float) -> str:
    """When so many epochs were trained, in percent of the film."""
    return f"{PLAYED * epoch / EPOCHS:.2f}%"


def shown_between(name: str, begin: float, end: float) -> str:
    """Keyframes of something that is there between two epochs; if the later is the last, until the film ends."""
    ends = "" if end >= EPOCHS else f"{moment(end)}{{opacity:1}}{moment(end + 0.5)},"
    return (
        f"@keyframes {name}{{0%,{moment(max(begin - 0.1, 0))}{{opacity:0}}{moment(begin)}{{opacity:1}}"
        f"{ends}100%{{opacity:{0 if ends else 1}}}}}"
    )


def animated(name: str) -> str:
    """The attribute of an element that these keyframes move."""
    return f'style="animation-name:{name}"'


def draw(found: Record) -> str:
    """The picture."""
    styles, body = [_themes()], []
    for part in (_sensor(found), _network(found), _seeds(found), _plot(found), _lanes(found)):
        styles += part[0]
        body += part[1]
    alone, grown = mean(found.alone), mean(found.grown)
    words = (
        f"Accuracy of a network under three changes of its data: {grown:.0%} over its life where it may grow, "
        f"{alone:.0%} left alone"
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
            f'font-family="system-ui, sans-serif" font-size="12" aria-label="{escape(words, quote=True)}">',
            f"<style>{chr(10).join(styles)}</style>",
            f'<rect class="card" width="{WIDTH}" height="{HEIGHT}" rx="14"/>',
            '<text class="ink" x="24" y="30" font-size="15" font-weight="700">One network, whose data change three '
            "times: accuracy falls, seeds are tried, what helps is kept</text>",
            *body,
            "</svg>",
            "",
        ]
    )


def _themes() -> str:
    def colours(theme: Theme) -> str:
        return (
            f"svg{{--card:{theme.card};--ink:{theme.text};--faint:{theme.faint};--grid:{theme.grid};"
            f"--idle:{theme.idle};--grown:{theme.runs[0]}}}"
        )

    stages = "".join(f".{name}{{fill:{COLOURS[name]}}}" for name in WORDS)
    return (
        f"{colours(LIGHT)}@media (prefers-color-scheme:dark){{{colours(DARK)}}}"
        ".card{fill:var(--card)}.ink{fill:var(--ink)}.faint{fill:var(--faint)}.idle{fill:var(--idle)}"
        f"{stages}"
        ".rail,.branch{fill:none;stroke:var(--faint);stroke-width:2}.grid{stroke:var(--grid);stroke-opacity:.7}"
        ".alone,.grown{fill:none;stroke:var(--faint);stroke-width:2}.alone{stroke-dasharray:5 3}"
        ".grown{stroke:var(--grown);stroke-width:2.5}.head{stroke:var(--ink)}.middle{text-anchor:middle}"
        f"[style]{{animation:none {SECONDS}s linear -{SECONDS * (PLAYED + 1) / 100:g}s infinite}}"
        ".seed circle{transform-box:fill-box;"
        "transform-origin:center}.cover{transform-box:fill-box;transform-origin:right;transform:scaleX(0)}"
        ".gone{opacity:0}@media (prefers-reduced-motion:reduce){[style]{animation:none!important}}"
    )


def _sensor(found: Record) -> tuple[list[str], list[str]]:
    """What the sensor shows in each phase; its frame flares up when that changes."""
    left, top, wide, middle = 24, 66, 150, 112
    bounds = [0, *(epoch for epoch, _ in CHANGES), EPOCHS]
    styles = [shown_between(f"w{n}", bounds[n], bounds[n + 1]) for n in range(len(found.windows))]
    flares = "".join(
        f"{moment(epoch - 0.1)}{{stroke-opacity:0}}{moment(epoch)}{{stroke-opacity:1}}"
        f"{moment(epoch + 6)}{{stroke-opacity:0}}"
        for epoch, _ in CHANGES
    )
    styles.append(f"@keyframes flare{{0%{{stroke-opacity:0}}{flares}100%{{stroke-opacity:0}}}}")
    parts = [
        f'<rect class="idle" x="{left}" y="{top}" width="{wide}" height="92" rx="8" fill-opacity=".35"/>',
        f'<rect x="{left}" y="{top}" width="{wide}" height="92" rx="8" fill="none" stroke="{VERMILION}" '
        f'stroke-width="3" stroke-opacity="0" {animated("flare")}/>',
        f'<text class="faint" x="{left}" y="{top - 8}">what the sensor shows</text>',
    ]
    for number, window in enumerate(found.windows):
        step = (wide - 16) / (len(window) - 1)
        points = " ".join(f"{left + 8 + n * step:.0f},{middle - 36 * y:.0f}" for n, y in enumerate(window))
        there = "" if number == len(found.windows) - 1 else ' class="gone"'
        parts.append(f'<g{there} {animated(f"w{number}")}><polyline class="grown" points="{points}"/></g>')
    return styles, parts


def _place(number: int) -> int:
    """The left edge of a block."""
    return 214 + 160 * number


def _network(found: Record) -> tuple[list[str], list[str]]:
    """The host, from the sensor to its answer, and what the colours of seeds mean."""
    names = list(found.slots)
    parts = [f'<path class="rail" d="M174 {RAIL} H{_place(len(names)) + 64}"/>']
    for number, name in enumerate((*names, "head")):
        wide = 92 if number < len(names) else 56
        parts += [
            f'<rect class="idle" x="{_place(number)}" y="{RAIL - 22}" width="{wide}" height="44" rx="8"/>',
            f'<text class="ink middle" x="{_place(number) + wide // 2}" y="{RAIL + 5}">{escape(name)}</text>',
        ]
    for number, (stage, word) in enumerate(WORDS.items()):
        y = 66 + 19 * number
        parts += [
            f'<circle class="{stage}" cx="806" cy="{y}" r="6"/>',
            f'<text class="faint" x="820" y="{y + 4}">{word}</text>',
        ]
    return [], parts


def _seeds(found: Record) -> tuple[list[str], list[str]]:
    """Every seed above the place where it takes part."""
    styles: list[str] = []
    parts: list[str] = []
    names = list(found.slots)
    for number, seed in enumerate(seeds_of(found)):
        edge = _place(names.index(seed.slot)) + 92
        stays = seed.last == EPOCHS
        lingers = EPOCHS if stays else seed.last + 4
        styles += [shown_between(f"s{number}", seed.first, lingers), *_life(seed, f"{number}")]
        end = seed.standings[-1]
        parts += [
            f'<g class="seed{"" if stays else " gone"}" {animated(f"s{number}")}><title>{escape(fate(seed))}</title>',
            f'<path class="branch" d="M{edge} {RAIL} C{edge + 6} 76 {edge + 20} 76 {edge + 34} 76 S{edge + 62} 76 '
            f'{edge + 68} {RAIL}" {animated(f"b{number}")}/>',
            f'<circle class="{end.stage}" cx="{edge + 34}" cy="76" r="15" {animated(f"c{number}")}/>',
            f'<text class="ink middle" x="{edge + 34}" y="54" font-weight="600">{escape(seed.blueprint)}</text>',
            *_words(seed, number, edge + 34, styles),
            "</g>",
        ]
    return styles, parts


def _life(seed: Seed, number: str) -> list[str]:
    """Keyframes of a seed's circle (size and colour) and of its branch (width and dashes), where they change."""
    circle, branch, stage = "", "", ""
    for standing, begin, end in seed.spans(lambda standing: standing):
        size, gap = 0.45 + 0.55 * standing.alpha, 4 if standing.alpha == 0.0 else 0
        if stage not in ("", standing.stage):  # at once: between two colours is no stage
            circle += f"{moment(begin - 0.05)}{{fill:{COLOURS[stage]}}}"
        stage = standing.stage
        when = f"{moment(begin)},100%" if end == EPOCHS else moment(begin)
        circle += f"{when}{{fill:{COLOURS[stage]};transform:scale({size:.2f})}}"
        branch += f"{when}{{stroke-width:{1.5 + 2 * standing.alpha:.2f};stroke-dasharray:4 {gap}}}"
    if seed.last < EPOCHS:
        circle += f"{moment(seed.last)},100%{{fill:{VERMILION};transform:scale(0)}}"
        branch += f"{moment(seed.last)},100%{{stroke-width:0;stroke-dasharray:4 0}}"
    return [f"@keyframes c{number}{{{circle}}}", f"@keyframes b{number}{{{branch}}}"]


def _words(seed: Seed, number: int, x: int, styles: list[str]) -> list[str]:
    """The stage below a seed; their keyframes are added to `styles`."""
    spans = seed.spans(lambda standing: WORDS[standing.stage])
    if seed.last < EPOCHS:
        *spans, (word, begin, end) = spans
        spans.append((word, begin, end + 4))
    parts = []
    for place, (word, begin, end) in enumerate(spans):
        name = f"t{number}_{place}"
        styles.append(shown_between(name, begin, end - 0.5 if end < EPOCHS else end))
        there = "faint middle" if place == len(spans) - 1 else "faint middle gone"
        parts.append(f'<text class="{there}" x="{x}" y="108" font-size="11" {animated(name)}>{word}</text>')
    return parts


def x_of(epoch: float) -> float:
    return LEFT + epoch / EPOCHS * (RIGHT - LEFT)


def y_of(accuracy: float) -> float:
    """From 0.2, a little under chance, to 1."""
    return BOTTOM - (accuracy - 0.2) / 0.8 * (BOTTOM - TOP)


def _plot(found: Record) -> tuple[list[str], list[str]]:
    """Accuracy by epoch; lines and lanes come out from under a cover, which is drawn by `_lanes`."""
    parts = []
    for share in (0.25, 0.5, 0.75, 1.0):
        y = y_of(share)
        parts += [
            f'<path class="grid" d="M{LEFT} {y:.1f} H{RIGHT}"/>',
            f'<text class="faint" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{share:.0%}</text>',
        ]
    for name, line in (("alone", found.alone), ("grown", found.grown)):
        points = " ".join(f"{x_of(n + 1):.1f},{y_of(value):.1f}" for n, value in enumerate(line))
        parts.append(f'<polyline class="{name}" points="{points}"/>')
    bounds = [0, *(epoch for epoch, _ in CHANGES), EPOCHS]
    for begin, end in pairwise(bounds[1:]):
        ours, theirs = mean(found.grown[begin:end]), mean(found.alone[begin:end])
        parts.append(
            f'<text class="ink" x="{x_of(begin) + 8:.0f}" y="{TOP + 12}">{theirs:.0%} left alone, '
            f'<tspan font-weight="700">{ours:.0%} grown</tspan></text>'
        )
    return [], parts


def _lanes(found: Record) -> tuple[list[str], list[str]]:
    """A lane for each slot, as high as alpha; then the cover, the changes, and what stands beside the plot."""
    floor = LANES + LANE * len(found.slots)
    parts = []
    for number, name in enumerate(found.slots):
        bottom = LANES + LANE * (number + 1) - 2
        parts.append(
            f'<text class="faint" x="{LEFT - 8}" y="{bottom - 3}" text-anchor="end" font-size="11">'
            f"{escape(name)}</text>"
        )
        parts += [_bar(seed, bottom) for seed in seeds_of(found) if seed.slot == name]
    grown, alone = found.grown[-1], found.alone[-1]
    largest = found.host_parameters + max(found.added_parameters)
    ends = (
        (grown, "var(--grown)", "grown", mean(found.grown), f"at most {largest:,}"),
        (alone, "var(--faint)", "left alone", mean(found.alone), f"{found.host_parameters:,}"),
    )
    for value, colour, words, life, size in ends:
        parts.append(
            f'<g transform="translate({RIGHT + 8} {y_of(value):.0f})">'
            f'<text fill="{colour}" font-weight="700">{words}</text>'
            f'<text class="faint" y="14" font-size="11">{size} parameters</text>'
            f'<text class="ink" x="74" {animated("sum")}>mean {life:.0%}</text></g>'
        )
    parts.append(
        f'<rect class="card cover" x="{LEFT}" y="{TOP - 8}" width="{RIGHT - LEFT}" height="{floor - TOP + 8}" '
        f"{animated('cover')}/>"
    )
    for epoch, words in (*CHANGES, (EPOCHS, "")):
        parts += [
            f'<path class="grid" d="M{x_of(epoch):.1f} {TOP - 8} V{floor}" stroke-width="2"/>',
            f'<text class="faint" x="{x_of(epoch) + 8:.1f}" y="{TOP - 12}">{words}</text>',
            f'<text class="faint middle" x="{x_of(epoch):.1f}" y="{floor + 16}">{epoch}</text>',
        ]
    parts += [
        f'<text class="faint" x="{LEFT}" y="{TOP - 12}">accuracy</text>',
        f'<text class="faint" x="{RIGHT + 8}" y="{floor - 18}" font-size="11">seeds by slot,</text>',
        f'<text class="faint" x="{RIGHT + 8}" y="{floor - 4}" font-size="11">as high as alpha</text>',
        f'<text class="faint" x="{RIGHT + 20}" y="{floor + 16}">epochs</text>',
        f'<path class="head" d="M{RIGHT} {TOP - 8} V{floor}" stroke-opacity="0" {animated("head")}/>',
    ]
    long = RIGHT - LEFT
    return [
        shown_between("sum", EPOCHS, EPOCHS),
        f"@keyframes cover{{0%{{transform:scaleX(1)}}{PLAYED}%,100%{{transform:scaleX(0)}}}}",
        f"@keyframes head{{0%{{transform:translateX(-{long}px);stroke-opacity:1}}{PLAYED}%{{transform:none;"
        f"stroke-opacity:1}}{PLAYED + 1}%,100%{{transform:none;stroke-opacity:0}}}}",
    ], parts


def _bar(seed: Seed, bottom: int) -> str:
    """A seed in its lane: neighbouring epochs that are alike are one rectangle."""
    rows = [f"<g><title>{escape(fate(seed))}</title>"]
    for standing, begin, end in seed.spans(lambda standing: standing):
        high = 3 + (LANE - 6) * standing.alpha
        rows.append(
            f'<rect class="{standing.stage}" x="{x_of(begin):.1f}" y="{bottom - high:.1f}" '
            f'width="{x_of(end) - x_of(begin):.1f}" height="{high:.1f}"/>'
        )
    return "".join([*rows, "</g>"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--record", action="store_true", help="train the network anew first")
    if parser.parse_args().record:
        RECORD.write_bytes(RECORDS.dump_json(record()) + b"\n")
    PICTURE.write_text(draw(RECORDS.validate_json(RECORD.read_bytes())))


if __name__ == "__main__":
    main()
