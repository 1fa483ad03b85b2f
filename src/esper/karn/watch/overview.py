"""The curves of the page, and what stands beside them: learning, health, operations, cost, seeds."""

from collections.abc import Sequence

from nicegui import ui

from esper.karn.palette import Theme
from esper.karn.watch import charts, texts
from esper.karn.watch.charts import Shown
from esper.karn.watch.facts import cost_facts, time_tree
from esper.karn.watch.runs import Watched
from esper.karn.watch.verdicts import WINDOW, Warning, tiles, warnings
from esper.karn.watch.widgets import Facts, Plots, Tiles, section

MOST_WARNINGS = 6
_SEED_COLUMNS = (
    ("blueprint", "blueprint", "left"),
    ("slot", "slot", "left"),
    ("germinated", "germinated", "right"),
    ("fossilized", "fossilised", "right"),
    ("pruned", "pruned", "right"),
    ("undecided", "neither", "right"),
    ("kept", "share fossilised", "right"),
    ("contribution", "mean contribution", "right"),
)


class Overview:
    """Sections 1, 2, 5 and 6, and the operations of 3. The parts are built in the order of the page."""

    def __init__(self) -> None:
        self._plots = Plots()
        self._warned: list[Warning] | None = None

    def build_first(self) -> None:
        self._tiles = Tiles(5)
        section(
            1, "Is it learning?", "learning", "against the same hosts left alone; bands are 95 % intervals"
        )
        with ui.element("div").classes("grid three"):
            self._plots.add("gain", "gain over waiting by round", "tall")
            self._plots.add("utility", "utility by round, with the wait-only control", "tall")
            self._plots.add("accuracy", "accuracy by round, with the wait-only control", "tall")
        section(2, "Is it healthy?", "health", "the learner's own measurements, by round")
        with ui.element("div").classes("grid four"):
            self._plots.add("explained", "explained variance by round", "low")
            self._plots.add("kl", "KL divergence by round", "low")
            self._plots.add("entropy", "entropy of each head by round", "low")
            self._plots.add("gradients", "gradient norm by round", "low")
        self._warnings = (
            ui.element("div").classes("panel").props('aria-label="anomalies"').props('data-testid="warnings"')
        )

    def build_operations(self) -> None:
        self._plots.add("operations", "share of each operation by round", "course")

    def build_last(self) -> None:
        section(5, "What did it cost?", "cost", "time, speed and memory")
        with ui.element("div").classes("grid five"):
            with ui.element("div").classes("panel padded"):
                self._costs = Facts("costs")
            with ui.element("div").classes("panel padded"):
                ui.label(f"Time of the last {WINDOW} rounds").style("font-weight: 600")
                self._tree = Facts("time-tree")
            self._plots.add("speed", "env-epochs per second by round", "low")
            self._plots.add("seconds", "seconds per round", "low")
            self._plots.add("memory", "peak memory by round", "low")
        section(6, "Which seeds earned their keep?", "seeds", "by blueprint and slot, over the whole run")
        self._counting = ui.label().classes("faint")
        self._seeds = ui.table(
            columns=[
                {"name": name, "label": label, "field": name, "align": align, "sortable": True}
                for name, label, align in _SEED_COLUMNS
            ],
            rows=[],
            row_key="key",
            pagination={"rowsPerPage": 12, "sortBy": "germinated", "descending": True},
        ).props('dense flat aria-label="seeds by blueprint and slot"')
        self._seeds.props('data-testid="seeds"')

    def update(self, runs: Sequence[Shown], watched: Watched, theme: Theme) -> None:
        """Everything from what is known now."""
        first, state = runs[0], watched.state
        self._tiles.show(tiles(state, watched.standing, watched.planned_rounds))
        show = self._plots.show
        show("gain", charts.gain(runs, theme))
        show("utility", charts.utility(runs, theme))
        show("accuracy", charts.accuracy(runs, theme))
        show("explained", charts.explained_variance(runs, theme))
        show("kl", charts.divergence(runs, theme, watched.target_kl))
        show("entropy", charts.entropy(first, theme))
        show("gradients", charts.gradient_norm(runs, theme))
        show("operations", charts.operation_mix(first, theme))
        show("speed", charts.speed(runs, theme))
        show("seconds", charts.seconds(runs, theme))
        show("memory", charts.memory(runs, theme))
        self._show_warnings(warnings(state)[:MOST_WARNINGS])
        self._costs.show(cost_facts(watched))
        self._tree.show(time_tree(state.rounds[-WINDOW:]))
        self._show_seeds(watched)

    def _show_warnings(self, found: list[Warning]) -> None:
        if found == self._warned:
            return
        self._warned = found
        self._warnings.clear()
        with self._warnings:
            if not found:
                ui.label("No anomaly was raised.").classes("faint padded")
            for warning in found:
                with ui.element("div").classes("warning"):
                    name = texts.clipped(warning.name, 60).replace("_", " ")
                    ui.label(f"{'▼ ' if warning.recent else ''}{name}").classes("n")
                    ui.label(warning.when)
                    ui.label(texts.clipped(f"{warning.last.detail}. {warning.last.advice}", 300))

    def _show_seeds(self, watched: Watched) -> None:
        counted = watched.state.seeds_counted
        rows = [
            {
                "key": f"{row.blueprint} {row.slot}",
                "blueprint": row.blueprint,
                "slot": row.slot,
                "germinated": row.germinated,
                "fossilized": row.fossilized,
                "pruned": row.pruned,
                "undecided": row.undecided,
                "kept": texts.share(row.fossilized, row.germinated),
                "contribution": texts.signed(row.contribution, 4),
            }
            for row in watched.state.seed_counts()
        ]
        if not rows:
            self._counting.set_text(
                "No seed was germinated in what was recorded; decisions need run_telemetry full."
            )
        elif counted < 1.0:
            self._counting.set_text(f"Counting: {counted:.0%} of the rounds so far.")
        else:
            self._counting.set_text(
                "Contribution is accuracy with the seed minus without it, when it was last decided about. "
                "That is dependence, not gain."
            )
        if rows != self._seeds.rows:
            self._seeds.rows = rows
