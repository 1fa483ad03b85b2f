"""`esper tasks`: what a controller can be trained on."""

from esper.cli.common import VerbParser, as_json, table

TASK_COLUMNS = ("task", "epochs", "rent", "parameters", "what it is")
SUITE_COLUMNS = ("suite", "held out", "what it draws")


def run(arguments: list[str]) -> int:
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
        print(table(SUITE_COLUMNS, suites), end="\n\n")
        print(table(TASK_COLUMNS, [(*row[:3], ", ".join(row[3]), row[4]) for row in tasks]))
    return 0


def _toy(slots: tuple[int, ...], changes: tuple[int, ...]) -> str:
    change = "it may change" if any(changes) else "it never changes"
    return f"a world without training: {' or '.join(map(str, slots))} slots, {change}; any number held out"
