"""`esper runs`: the runs in a folder and the state of each."""

from datetime import datetime, timedelta

from esper.cli.common import VerbParser, as_json, table

COLUMNS = ("run", "standing", "rounds", "started", "lasted")


def run(arguments: list[str]) -> int:
    """List runs; returns the exit code."""
    summary = "List the runs in a folder, and how each stands."
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


def _moment(seconds: float | None) -> str | None:
    return None if seconds is None else f"{datetime.fromtimestamp(seconds):%Y-%m-%d %H:%M}"


def _length(seconds: float | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=round(seconds))
