"""`esper runs` and `esper sql`: what was recorded. `esper tasks`: what a controller can be trained on."""

from datetime import datetime, timedelta
from pathlib import Path

from esper.cli.common import RUNS, BadInput, VerbParser, as_json, find_run, note, table

RUN_COLUMNS = ("run", "standing", "rounds", "started", "lasted")


def run_runs(arguments: list[str]) -> int:
    """List runs, or export their episodes; returns the exit code."""
    if arguments[:1] == ["export"]:
        return _export_episodes(arguments[1:])
    summary = "List the runs in a folder, and how each stands. `esper runs export` writes their episodes for others."
    chosen = VerbParser("runs", summary, "esper runs --directory runs", "directory", "json").parse(arguments)
    if chosen.directory != RUNS and not chosen.directory.is_dir():
        raise BadInput(f"--directory is {str(chosen.directory)!r}; there is no such folder")
    from esper.nissa import list_runs

    listings = list_runs(chosen.directory)
    if chosen.json:
        print(as_json(listings))
    elif not listings:
        print(f"no runs in the folder {chosen.directory}/ (`esper train --preset demo` makes one)")
    else:
        rows = (
            (each.name, each.standing, each.last_round, _moment(each.started), _length(each.seconds))
            for each in listings
        )
        print(table(RUN_COLUMNS, rows))
    return 0


def _export_episodes(arguments: list[str]) -> int:
    """Write the recorded episodes of runs, or any data sets, as one Minari data set."""
    summary = "Export recorded episodes (run_record_episodes) as a Minari data set, for other learners."
    parser = VerbParser(
        "runs export", summary, "esper runs export first second --minari esper/cpu-v0", "directory"
    )
    parser.add_argument("data", nargs="+", metavar="DATASET", help="runs, folders or files of episodes")
    parser.add_argument(
        "--minari", required=True, metavar="NAME", help="id of the Minari data set, as name-v0"
    )
    chosen = parser.parse(arguments)
    from esper.simic.offline.dataset import Dataset, export_minari

    named = (chosen.directory / each for each in chosen.data)
    places = [run if run.exists() else Path(each) for run, each in zip(named, chosen.data, strict=True)]
    data = Dataset.open(places)
    export_minari(data, chosen.minari)
    print(f"{len(data)} episodes, {data.steps} steps in the Minari data set {chosen.minari}")
    return 0


def _moment(seconds: float | None) -> str | None:
    return None if seconds is None else f"{datetime.fromtimestamp(seconds):%Y-%m-%d %H:%M}"


def _length(seconds: float | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=round(seconds))


_QUERY = """Query a run's record. Tables: runs, rounds, episodes, decisions, seeds, anomalies, evaluations, events;
`describe rounds` lists the columns of one."""
_QUERY_EXAMPLE = (
    'esper sql my-run "select round, mean_gain, approx_kl from rounds order by round desc limit 5"'
)


def run_sql(arguments: list[str]) -> int:
    """Print the answer to one query; returns the exit code."""
    parser = VerbParser("sql", _QUERY, _QUERY_EXAMPLE, "run", "json")
    parser.add_argument("sql", metavar="SQL", help="one SELECT")
    chosen = parser.parse(arguments)
    from esper.karn.sql import query

    answer = query(find_run(chosen.run, chosen.directory), chosen.sql)
    objects = (dict(zip(answer.columns, row, strict=True)) for row in answer.rows)
    if not answer.rows and not chosen.json:
        note(f"no rows; the query has {len(answer.columns)} columns")
        return 0
    print(as_json(list(objects)) if chosen.json else table(answer.columns, answer.rows))
    return 0


TASK_COLUMNS = ("task", "epochs", "rent", "parameters", "what it is")
_WIDTH = 100
"""Columns of a terminal that the lists of suites and tasks fit."""
SUITE_COLUMNS = ("suite", "held out", "what it draws")


def run_tasks(arguments: list[str]) -> int:
    """List tasks and suites; returns the exit code."""
    summary = (
        "List the tasks and suites. A suite draws instances of tasks; an instance has its parameters chosen."
    )
    example = "esper tasks, then: esper train --suite mnist1d:noise=0.2,size=1000"
    chosen = VerbParser("tasks", summary, example, "json").parse(arguments)
    from esper.tolaria.tasks import all_tasks, suite, suite_names
    from esper.tolaria.worlds.toy.instance import TOY_SUITES

    tasks = [(row.name, row.epochs, row.rent, list(row.parameters), row.summary) for row in all_tasks()]
    suites = [
        *((name, len(suite(name).held_out), suite(name).summary) for name in suite_names()),
        *((name, None, _toy(each.slots, each.changes)) for name, each in TOY_SUITES.items()),
    ]
    if chosen.json:
        as_objects = {
            "tasks": [dict(zip(TASK_COLUMNS, row, strict=True)) for row in tasks],
            "suites": [dict(zip(SUITE_COLUMNS, row, strict=True)) for row in suites],
        }
        print(as_json(as_objects))
    else:
        print(table(SUITE_COLUMNS, suites, width=_WIDTH), end="\n\n")
        columns = (*TASK_COLUMNS[:3], "what it is, and its parameters")
        print(table(columns, [(*row[:3], _described(row[4], row[3])) for row in tasks], width=_WIDTH))
    return 0


def _described(summary: str, parameters: list[str]) -> str:
    return f"{summary}; parameters {', '.join(parameters)}" if parameters else summary


def _toy(slots: tuple[int, ...], changes: tuple[int, ...]) -> str:
    change = "it may change" if any(changes) else "it never changes"
    return f"a world without training: {' or '.join(map(str, slots))} slots, {change}; any number held out"
