"""`esper evaluate`: judge a run's controller on tasks it was not trained on."""

from typing import TYPE_CHECKING

from esper.cli.arguments import VerbParser, find_run
from esper.cli.errors import BadInput
from esper.cli.output import as_json, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from esper.simic.held_out import HeldOutScore


def run(arguments: list[str]) -> int:
    parser = VerbParser(
        "evaluate",
        "Judge a run's best controller, without learning, on the held-out cases of its suite or on another.",
        "esper evaluate my-run --task mnist1d:noise=0.2 --episodes 32",
    )
    parser.add_run()
    parser.add_argument(
        "--task", metavar="CASE", help="a suite or a task instance; by default the run's own suite"
    )
    parser.add_argument(
        "--episodes", type=int, metavar="N", help="how many; by default the run's eval_episodes"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of hosts and cases (%(default)s)")
    parser.add_json()
    chosen = parser.parse_args(arguments)
    if chosen.episodes is not None and chosen.episodes < 1:
        raise BadInput(f"episodes is {chosen.episodes}; expected a whole number >= 1")
    path = find_run(chosen.run, chosen.directory)
    if chosen.task is not None:
        from esper.cli.tasks import require_suite

        require_suite(chosen.task)
    from esper.simic.agent import CheckpointError
    from esper.simic.configuration.errors import ConfigError
    from esper.simic.held_out import UnfitCaseError, evaluate_checkpoint
    from esper.simic.training_config import TrainingConfig

    checkpoint = path / "checkpoints" / "best.pt"
    if not checkpoint.exists():
        checkpoint = path / "checkpoints" / "last.pt"
    if not checkpoint.exists():
        raise BadInput(f"run {path} has no checkpoint to judge; train it first")
    try:
        config = TrainingConfig.load(path / "config.json")
        scores = evaluate_checkpoint(
            config,
            checkpoint,
            name=chosen.task,
            episodes=chosen.episodes or config.eval_episodes,
            seed=chosen.seed,
        )
    except (ConfigError, CheckpointError, UnfitCaseError) as error:
        raise BadInput(str(error)) from None
    if chosen.json:
        print(as_json(scores))
        return 0
    print(f"{checkpoint.stem} checkpoint of {path.name} on {chosen.task or config.suite}, held out")
    print(score_table(scores))
    return 0


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
