"""`esper controllers`: list what is shipped, or export one of a run. `esper evaluate`: judge one, or a run's."""

import sys
import time
from functools import partial
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

from esper.cli.common import (
    INTERRUPTED,
    BadInput,
    VerbParser,
    as_json,
    as_typed,
    did_you_mean,
    find_run,
    note,
    stopped_by,
    table,
)

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Sequence

    from esper.tamiyo.controller import ControllerCard, HeldOutScore

COLUMNS = ("controller", "suite", "steps", "points over waiting", "best rule", "licence")
MEASURED = """
The suite and steps are those of its training. Points are of utility: validation
accuracy minus rent for added parameters (over the whole life on streams), over
the same hosts with nothing grown; mean over hosts that were held out, of
this very one; docs/benchmark.md has the mean of all that were trained alike."""
_WIDTH = 80
"""Columns of a terminal that the list fits."""
_EXAMPLE = "esper controllers export my-run --to my-controller --episodes 24"


def run_controllers(arguments: list[str]) -> int:
    """List the controllers, or export one; returns the exit code."""
    if arguments[:1] == ["export"]:
        return _export(arguments[1:])
    summary = (
        "List the controllers that come with Esper. `esper controllers export RUN --to FOLDER` makes another."
    )
    chosen = VerbParser("controllers", summary, _EXAMPLE, "json").parse(arguments)
    from esper.tamiyo.controller import read_card, shipped_controllers

    cards = [read_card(folder) for folder in shipped_controllers().values()]
    if chosen.json:
        print(as_json(cards))
    elif not cards:
        print("none comes with this version; `esper controllers export RUN --to FOLDER` makes one of a run")
    else:
        print(table(COLUMNS, [_row(card) for card in cards]), end="\n\n")
        for card in cards:
            print(fill(f"{card.name}: {card.summary}", _WIDTH, subsequent_indent="  "))
        print(MEASURED)
    return 0


def _row(card: "ControllerCard") -> tuple[object, ...]:
    own = [row for row in card.evidence if row.policy == card.name]
    gain = f"{100 * own[0].gain:+.1f} on {own[0].suite}" if own else None
    others = [row for row in card.evidence if own and row.policy != card.name and row.suite == own[0].suite]
    best = max(others, key=lambda row: row.gain, default=None)
    rule = None if best is None else f"{100 * best.gain:+.1f} {best.policy}"
    return card.name, card.training.suite, card.training.env_steps, gain, rule, card.licence


def _export(arguments: list[str]) -> int:
    summary = "Turn the best checkpoint of a run into a controller: a folder with weights and a card."
    parser = VerbParser("controllers export", summary, _EXAMPLE, "run", "json")
    parser.add_argument("--to", type=Path, required=True, metavar="FOLDER", help="where to write it")
    parser.add_argument("--name", help="its name; by default the folder's")
    parser.add_argument("--summary", default="", metavar="TEXT", help="one line on what it is")
    parser.add_argument("--licence", default="MIT", metavar="TEXT", help="its terms of use (%(default)s)")
    parser.add_count("--episodes", "held-out episodes to put on its card; by default none")
    parser.add_argument("--force", action="store_true", help="write over the controller that is there")
    chosen = parser.parse(arguments)
    if _is_controller(chosen):
        raise BadInput(f"{chosen.run!r} is a controller already; a run can be exported (`esper runs`)")
    path = find_run(chosen.run, chosen.directory)
    from pydantic import ValidationError

    from esper.runs.ship import controller_of_run, require_checkpoint, with_evidence
    from esper.simic.held_out import evaluate_controller
    from esper.tamiyo.controller import CARD

    if chosen.to.is_file():
        raise BadInput(f"--to is {str(chosen.to)!r}, which is a file; a controller is a folder")
    if (chosen.to / CARD).is_file() and not chosen.force:
        raise BadInput(f"--to is {str(chosen.to)!r}, which is a controller already; --force writes over it")
    checkpoint = require_checkpoint(path)
    try:
        names = {"name": chosen.name or chosen.to.name, "summary": chosen.summary, "licence": chosen.licence}
        controller = controller_of_run(path, checkpoint, **names)
        if chosen.episodes is not None:
            scores = evaluate_controller(controller, episodes=chosen.episodes, progress=_Progress())
            controller = with_evidence(controller, controller.card.training.suite, scores)
        controller.save(chosen.to)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        unnamed = field == "name" and chosen.name is None
        given = "--to names it" if unnamed else f"--{field} is"
        raise BadInput(f"{given} {first['input']!r}: {first['msg']}") from None
    except OSError as error:
        raise BadInput(
            f"controller {chosen.to} cannot be written ({error.strerror}); choose another folder"
        ) from None
    done = f"{checkpoint.stem} checkpoint of {path.name} is now the controller {chosen.to}"
    print(as_json(controller.card) if chosen.json else done)
    return 0


# Judging one


UPDATES = 500
"""Updates of fitted Q evaluation, by default."""
EPISODES = 24
"""Held-out episodes of a saved controller, by default."""
_JUDGE = """Judge a run's best controller, or a saved one (`esper controllers`), without learning, on the held-out
instances of its suite or on another: other draws and hosts than a training chooses its best checkpoint by. A saved
controller serves any suite; a run's own policy those with its slots and kinds of seeds.
Rules play under the controller's menu and first_growth; in `esper bench` they are free."""


def run_evaluate(arguments: list[str]) -> int:
    """Evaluate a controller and the rules beside it; returns the exit code."""
    example = "esper evaluate my-run --task mnist1d:noise=0.2 --episodes 32"
    parser = VerbParser("evaluate", _JUDGE, example, "directory", "json")
    parser.add_argument(
        "run", metavar="RUN", help="a run or a controller (`esper controllers`): its name or folder"
    )
    task = "a suite or a task instance; by default the run's own suite"
    parser.add_argument("--task", metavar="NAME", help=task)
    parser.add_count("--episodes", "of each policy; by default the run's eval_episodes, or 24")
    parser.add_seed("rng seed of hosts and instances (%(default)s)")
    data = "judge from recorded episodes instead of hosts: files, folders, or runs that recorded theirs"
    parser.add_argument("--offline", nargs="+", metavar="DATASET", help=data)
    parser.add_count("--updates", "with --offline: updates of fitted Q (%(default)s)", default=UPDATES)
    chosen = parser.parse(arguments)
    if chosen.offline is not None:
        return _judge_offline(chosen)
    if chosen.task is not None:
        from esper.simic.env.making import require_suite

        with as_typed({"suite": "--task"}):
            require_suite(chosen.task)
    title, judge = _judging_controller(chosen) if _is_controller(chosen) else _judging_run(chosen)
    scores: list[HeldOutScore] = []
    stopped: str | None = None
    try:
        judge(progress=_Progress(), scored=scores.append)
    except KeyboardInterrupt as interrupt:
        if not scores:
            raise
        stopped = stopped_by(interrupt)
    print(as_json(scores) if chosen.json else f"{title}\n{score_table(scores)}")
    if stopped:
        note(f"stopped by {stopped}: these were judged to their end; `esper bench` keeps what was played")
    return INTERRUPTED if stopped else 0


def _is_controller(chosen: "Namespace") -> bool:
    """Whether it names a controller; a run of the same name, which was trained here, goes first."""
    from esper.tamiyo.controller import controller_folder

    if any((place / "config.json").is_file() for place in (chosen.directory / chosen.run, Path(chosen.run))):
        return False
    return controller_folder(chosen.run) is not None


def _run_or_controller(chosen: "Namespace") -> Path:
    """The folder of the run that is to be judged; what is neither a run nor a controller is said to be neither."""
    from esper.tamiyo.controller import shipped_controllers

    try:
        return find_run(chosen.run, chosen.directory)
    except BadInput:
        known = [
            *(path.parent.name for path in sorted(chosen.directory.glob("*/config.json"))),
            *shipped_controllers(),
        ]
        hint = did_you_mean(chosen.run, known, "`esper runs` and `esper controllers` list what is there")
        found = f"{chosen.run!r} is neither a run nor a controller"
        if not Path(chosen.run).is_dir():
            found = f"there is no run {chosen.run!r} in {chosen.directory}, and no controller of that name or folder"
        raise BadInput(f"{found}; {hint}") from None


def _judging_controller(chosen: "Namespace") -> "tuple[str, Callable[..., object]]":
    from esper.simic.held_out import evaluate_controller
    from esper.tamiyo.controller import Controller

    controller = Controller.load(chosen.run)
    suite, episodes = chosen.task or controller.card.training.suite, chosen.episodes or EPISODES
    title = f"controller {controller.card.name} on {suite}, held out"
    return title, partial(
        evaluate_controller, controller, name=chosen.task, episodes=episodes, seed=chosen.seed
    )


def _judging_run(chosen: "Namespace") -> "tuple[str, Callable[..., object]]":
    path = _run_or_controller(chosen)
    from esper.nissa import describe_run
    from esper.runs.ship import require_checkpoint
    from esper.simic.config.training_config import TrainingConfig
    from esper.simic.held_out import evaluate_checkpoint

    checkpoint = require_checkpoint(path)
    config = TrainingConfig.load(path / "config.json")
    episodes = chosen.episodes or config.eval_episodes
    going_on = ", which is still training" if describe_run(path).standing == "running" else ""
    title = (
        f"{checkpoint.stem} checkpoint of {path.name}{going_on} on {chosen.task or config.suite}, held out"
    )
    return title, partial(
        evaluate_checkpoint, config, checkpoint, name=chosen.task, episodes=episodes, seed=chosen.seed
    )


def _judge_offline(chosen: "Namespace") -> int:
    """Print what data sets say of a run's controller, or of a saved one."""
    from esper.runs.offline import judge_offline

    for name in ("task", "episodes"):
        if getattr(chosen, name) is not None:
            raise BadInput(f"--{name} is for hosts; with --offline nothing is played")
    given = chosen.run if _is_controller(chosen) else find_run(chosen.run, chosen.directory)
    report = judge_offline(given, chosen.offline, updates=chosen.updates, seed=chosen.seed)
    if chosen.json:
        print(as_json(report))
        return 0
    columns = ("estimate", "return", "rests on episodes")
    rows = [
        ("what was recorded", f"{report.recorded:+.4f}", report.episodes),
        ("fitted Q", f"{report.fitted:+.4f}", report.episodes),
        (
            "importance weighted",
            None if report.weighted is None else f"{report.weighted:+.4f}",
            None if report.effective is None else f"{report.effective:.1f}",
        ),
    ]
    left_out = f" ({report.cut_short} more were cut short)" if report.cut_short else ""
    title = f"{report.policy} from {report.episodes} recorded episodes{left_out}, greedy"
    print(f"{title}\n{table(columns, rows)}")
    return 0


class _Progress:
    """Prints on stderr how far an evaluation is, as stdout is for the answer: each policy, and now and then."""

    def __init__(self) -> None:
        from esper.simic.timing import SteadyEstimate

        self._part, self._told, self._shown = "", 0.0, SteadyEstimate()
        self._began, self._before = 0.0, 0

    def __call__(self, part: str, done: int, total: int) -> None:
        from esper.karn.drawing import time_left
        from esper.simic.held_out import BASELINES
        from esper.simic.timing import QUIET_SECONDS

        now = time.monotonic()
        if not self._part or self._part == BASELINES != part:
            self._began, self._before = now, done
        if part == self._part and now - self._told < QUIET_SECONDS:
            return
        self._part, self._told = part, now
        played = done - self._before
        seconds = (now - self._began) / played * (total - done) if played else None
        left = "" if seconds is None else f"  {time_left(self._shown.take(seconds))}"
        what = "baselines are trained" if part == BASELINES else f"{part} plays"
        print(f"{done:6,} of {total:,} episodes{left}  {what}", file=sys.stderr, flush=True)


def score_table(scores: "Sequence[HeldOutScore]") -> str:
    """One line a policy; gains are paired with waiting, intervals 95 %, which a few episodes do not have."""
    from esper.statistics import LEAST

    columns = ("policy", "utility", "points over waiting", "test accuracy", "added parameters", "episodes")
    rows = [
        (
            score.policy,
            f"{score.utility:.3f}",
            f"{100 * score.gain:+.2f}{_bounds(score)}",
            None if score.test_accuracy is None else f"{score.test_accuracy:.3f}",
            None if score.added_parameters is None else f"{score.added_parameters:,.0f}",
            score.episodes,
        )
        for score in scores
    ]
    few = min((score.episodes for score in scores), default=LEAST)
    if few >= LEAST:
        return (
            f"{table(columns, rows)}\nUtility and points are of validation, less rent for added parameters."
        )
    count = "1 episode is" if few == 1 else f"{few} episodes are"
    return f"{table(columns, rows)}\n{count} too few to say who is better, which takes {LEAST}"


def _bounds(score: "HeldOutScore") -> str:
    if score.gain_low is None or score.gain_high is None:
        return ""
    return f" [{100 * score.gain_low:+.2f}, {100 * score.gain_high:+.2f}]"
