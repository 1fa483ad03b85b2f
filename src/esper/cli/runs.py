"""`esper runs`: the runs in a folder and the state of each; `esper runs export`: what they recorded, for others."""

from datetime import datetime, timedelta
from pathlib import Path

from esper.cli.common import VerbParser, as_json, table

COLUMNS = ("run", "standing", "rounds", "started", "lasted")


def run(arguments: list[str]) -> int:
    """List runs, or export their episodes; returns the exit code."""
    if arguments[:1] == ["export"]:
        return _export(arguments[1:])
    summary = "List the runs in a folder, and how each stands. `esper runs export` writes their episodes for others."
    chosen = VerbParser("runs", summary, "esper runs --directory runs", "directory", "json").parse(arguments)
    from esper.nissa import list_runs

    listings = list_runs(chosen.directory)
    if chosen.json:
        print(as_json(listings))
    elif not listings:
        print(f"no runs in {chosen.directory}; `esper train --preset demo` makes one")
    else:
        rows = (
            (each.name, each.standing, each.last_round, _moment(each.started), _length(each.seconds))
            for each in listings
        )
        print(table(COLUMNS, rows))
    return 0


def _export(arguments: list[str]) -> int:
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
