"""`esper sql`: query a run's record."""

from esper.cli.common import VerbParser, as_json, find_run, table

_SUMMARY = """Query a run's record. Tables: runs, rounds, episodes, decisions, seeds, anomalies, evaluations, events;
`describe rounds` lists the columns of one."""
_EXAMPLE = 'esper sql my-run "select round, mean_gain, approx_kl from rounds order by round desc limit 5"'


def run(arguments: list[str]) -> int:
    """Print the answer to one query; returns the exit code."""
    parser = VerbParser("sql", _SUMMARY, _EXAMPLE, "run", "json")
    parser.add_argument("sql", metavar="SQL", help="one SELECT")
    chosen = parser.parse(arguments)
    from esper.karn.sql import query

    answer = query(find_run(chosen.run, chosen.directory), chosen.sql)
    objects = (dict(zip(answer.columns, row, strict=True)) for row in answer.rows)
    print(as_json(list(objects)) if chosen.json else table(answer.columns, answer.rows))
    return 0
