"""`esper runs`: the runs and how they stand."""

from datetime import datetime

from esper.cli.common import VerbParser, as_json, table

COLUMNS = ("run", "standing", "rounds", "started", "lasted")


def run(arguments: list[str]) -> int:
    parser = VerbParser(
        "runs", "List the runs in a folder, and how each stands.", "esper runs --directory runs"
    )
    parser.add_directory()
    parser.add_json()
    chosen = parser.parse_args(arguments)
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


def _length(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
