"""`esper sql`: a question to a run's record."""

from esper.cli.common import BadInput, VerbParser, as_json, find_run, table


def run(arguments: list[str]) -> int:
    parser = VerbParser(
        "sql",
        "Ask a run's record a question. Tables: runs, rounds, episodes, decisions, seeds, anomalies, evaluations,\n"
        "events; `describe rounds` lists the columns of one.",
        'esper sql my-run "select round, mean_gain, approx_kl from rounds order by round desc limit 5"',
    )
    parser.add_run()
    parser.add_argument("sql", metavar="SQL", help="one SELECT")
    parser.add_json()
    chosen = parser.parse_args(arguments)
    path = find_run(chosen.run, chosen.directory)
    from esper.karn.sql import QueryError, query
    from esper.nissa import RunError

    try:
        answer = query(path, chosen.sql)
    except (QueryError, RunError) as error:
        raise BadInput(str(error)) from None
    if chosen.json:
        print(as_json([dict(zip(answer.columns, row, strict=True)) for row in answer.rows]))
    else:
        print(table(answer.columns, answer.rows))
    return 0
