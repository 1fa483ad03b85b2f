"""`esper tasks`: what a controller can be trained on."""

from esper.cli.common import BadInput, VerbParser, as_json, table

TASK_COLUMNS = ("task", "epochs", "rent", "parameters", "what it is")
SUITE_COLUMNS = ("suite", "held out", "what it draws")


def run(arguments: list[str]) -> int:
    parser = VerbParser(
        "tasks",
        "List the tasks and suites. A suite draws instances of tasks; an instance has its parameters chosen.",
        "esper tasks, then: esper train --suite mnist1d:noise=0.2,size=1000",
    )
    parser.add_json()
    chosen = parser.parse_args(arguments)
    tasks, suites = _tasks(), _suites()
    if chosen.json:
        as_objects = {
            "tasks": [dict(zip(TASK_COLUMNS, row, strict=True)) for row in tasks],
            "suites": [dict(zip(SUITE_COLUMNS, row, strict=True)) for row in suites],
        }
        print(as_json(as_objects))
    else:
        print(table(SUITE_COLUMNS, suites), end="\n\n")
        print(table(TASK_COLUMNS, [(*row[:3], ", ".join(row[3]), row[4]) for row in tasks]))
    return 0


def require_suite(name: str) -> None:
    """Refuse what is neither a suite nor a task instance whose data are there."""
    from esper.runs import train as recorded
    from esper.simic.config.errors import ConfigError

    try:
        recorded.require_suite(name)
    except ConfigError as error:
        raise BadInput(str(error)) from None


def _tasks() -> list[tuple[str, int, float, list[str], str]]:
    from esper.tolaria.tasks import all_tasks

    return [(row.name, row.epochs, row.rent, list(row.parameters), row.summary) for row in all_tasks()]


def _suites() -> list[tuple[str, int | None, str]]:
    from esper.tolaria.tasks import suite, suite_names
    from esper.tolaria.worlds.toy.instance import TOY_SUITES

    toys: list[tuple[str, int | None, str]] = [
        (name, None, f"a world without training: {_toy(each.slots, each.changes)}")
        for name, each in TOY_SUITES.items()
    ]
    return [(name, len(suite(name).held_out), suite(name).summary) for name in suite_names()] + toys


def _toy(slots: tuple[int, ...], changes: tuple[int, ...]) -> str:
    change = "it may change" if any(changes) else "it never changes"
    return f"{' or '.join(map(str, slots))} slots, {change}; any number held out"
