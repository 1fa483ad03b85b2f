"""`esper evaluate`: judge a controller, of a run or saved, on tasks it was not trained on."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from esper.cli.common import BadInput, VerbParser, as_json, find_run, table

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Sequence

    from esper.simic.held_out import HeldOutScore


EPISODES = 24
"""Held-out episodes of a saved controller, unless something else is said."""


def run(arguments: list[str]) -> int:
    parser = VerbParser(
        "evaluate",
        "Judge a run's best controller, or a saved one, without learning, on the held-out cases of its suite or on\n"
        "another. A saved controller serves any suite; a run's own policy those with its slots. Rules play\n"
        "under the controller's menu and first_growth; in `esper bench` they are free.",
        "esper evaluate my-run --task mnist1d:noise=0.2 --episodes 32",
    )
    parser.add_argument(
        "run", metavar="RUN", help="the name or folder of a run, or of a controller (`esper controllers`)"
    )
    parser.add_directory()
    parser.add_argument(
        "--task", metavar="CASE", help="a suite or a task instance; by default the run's own suite"
    )
    parser.add_argument(
        "--episodes", type=int, metavar="N", help="how many; by default the run's eval_episodes, or 24"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of hosts and cases (%(default)s)")
    parser.add_json()
    chosen = parser.parse_args(arguments)
    if chosen.episodes is not None and chosen.episodes < 1:
        raise BadInput(f"episodes is {chosen.episodes}; expected a whole number >= 1")
    if chosen.task is not None:
        from esper.cli.tasks import require_suite

        require_suite(chosen.task)
    judged, scores = _judge_controller(chosen) if _is_controller(chosen) else _judge_run(chosen)
    if chosen.json:
        print(as_json(scores))
    else:
        print(judged)
        print(score_table(scores))
    return 0


def _is_controller(chosen: "Namespace") -> bool:
    """A run of that name comes first: it is what was trained here."""
    if any((place / "config.json").is_file() for place in (chosen.directory / chosen.run, Path(chosen.run))):
        return False
    from esper.tamiyo.controller import CARD, shipped_controllers

    return chosen.run in shipped_controllers() or (Path(chosen.run) / CARD).is_file()


def _judge_controller(chosen: "Namespace") -> "tuple[str, Sequence[HeldOutScore]]":
    from esper.simic.held_out import evaluate_controller
    from esper.tamiyo.controller import Controller, ControllerError

    try:
        controller = Controller.load(chosen.run)
    except ControllerError as error:
        raise BadInput(str(error)) from None
    scores = evaluate_controller(
        controller,
        name=chosen.task,
        episodes=chosen.episodes or EPISODES,
        seed=chosen.seed,
        tell=_playing(chosen.episodes or EPISODES),
    )
    return (
        f"controller {controller.card.name} on {chosen.task or controller.card.training.suite}, held out",
        scores,
    )


def _judge_run(chosen: "Namespace") -> "tuple[str, Sequence[HeldOutScore]]":
    path = find_run(chosen.run, chosen.directory)
    from esper.runs.ship import best_checkpoint
    from esper.simic.agent import CheckpointError
    from esper.simic.config.errors import ConfigError
    from esper.simic.config.training_config import TrainingConfig
    from esper.simic.held_out import UnfitCaseError, evaluate_checkpoint

    checkpoint = best_checkpoint(path)
    if checkpoint is None:
        raise BadInput(f"run {path} has no checkpoint to judge; train it first")
    try:
        config = TrainingConfig.load(path / "config.json")
        scores = evaluate_checkpoint(
            config,
            checkpoint,
            name=chosen.task,
            episodes=chosen.episodes or config.eval_episodes,
            seed=chosen.seed,
            tell=_playing(chosen.episodes or config.eval_episodes),
        )
    except (ConfigError, CheckpointError, UnfitCaseError) as error:
        raise BadInput(str(error)) from None
    return f"{checkpoint.stem} checkpoint of {path.name} on {chosen.task or config.suite}, held out", scores


def _playing(episodes: int) -> "Callable[[str], None]":
    """Says on stderr who is at it: each may take a minute, and stdout is for the answer."""
    return lambda policy: print(f"  {policy} plays {episodes} episodes", file=sys.stderr, flush=True)


def score_table(scores: "Sequence[HeldOutScore]") -> str:
    """One line a policy; gains are paired with waiting, intervals 95 %."""
    rows = [
        (
            score.policy,
            f"{score.utility:.3f}",
            f"{score.gain:+.3f} [{score.gain_low:+.3f}, {score.gain_high:+.3f}]",
            "-" if score.test_accuracy is None else f"{score.test_accuracy:.3f}",
            "-" if score.added_parameters is None else f"{score.added_parameters:,.0f}",
            str(score.episodes),
        )
        for score in scores
    ]
    return table(
        ("policy", "utility", "gain over waiting", "test accuracy", "added parameters", "episodes"), rows
    )
