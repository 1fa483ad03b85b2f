"""`esper evaluate`: judge a run's controller on tasks it was not trained on."""

from esper.cli.arguments import VerbParser, find_run
from esper.cli.errors import BadInput
from esper.cli.output import as_json, plain, table


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
    from esper.nissa import RunError
    from esper.simic.agent import CheckpointError
    from esper.simic.trainer import evaluate_run  # type: ignore[import-not-found]

    try:
        result = evaluate_run(path, suite=chosen.task, episodes=chosen.episodes, seed=chosen.seed)
    except (RunError, CheckpointError) as error:
        raise BadInput(str(error)) from None
    numbers = plain(result)
    if chosen.json or not isinstance(numbers, dict):
        print(as_json(result))
    else:
        print(table(("evaluation", ""), list(numbers.items())))
    return 0
