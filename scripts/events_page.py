"""docs/events.md, from the events themselves:

python scripts/events_page.py > docs/events.md
"""

import ast
import inspect
import json
import sys
from collections.abc import Mapping
from dataclasses import fields
from enum import Enum
from pathlib import Path
from textwrap import dedent
from typing import get_args, get_origin, get_type_hints

from esper.leyline import SCHEMA_VERSION, Event, Place
from esper.nissa.event_file import KINDS, encode

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
from event_examples import EXAMPLES, QUERIES

_OPENING = """# Events

A run writes what happens to `runs/<name>/events.jsonl`: one JSON object a line, appended by one process, made
visible at the end of every round. This is schema version {version}; the first line, `run_started`, says which it is.

```python
import tempfile
from pathlib import Path

from esper.karn.sql import query
from esper.nissa import RunDirectory, collect_provenance, list_runs, open_recorder, read_events

provenance = collect_provenance(seeds={{"run": 0}}, device="cpu", precision="fp32")
runs = Path(tempfile.mkdtemp())  # those of `esper train` are in Path("runs")
with RunDirectory.create(runs, "digits-1", {{"envs": 8}}, provenance) as run:
    with open_recorder(run) as recorder:
        pass  # hand `recorder` to whatever takes an EventSink

for record in read_events(runs / "digits-1"):  # follow=True waits for more
    print(record.time, record.place, record.event)
print(list_runs(runs))
print(query(runs / "digits-1", "select round, mean_gain from rounds"))
```

- Unknown is `null`, never 0. NaN and Inf are written as `null` too, and `"non_finite": {{"value_loss": "nan"}}` says
  which fields were that; reading puts them back.
- Enumerations are written by name. Accuracies are 0..1.
- A reader skips a last line that was cut off, and kinds that only a newer version knows, and counts both.
- A run that was resumed has a second `run_started`; what was recorded after the round it resumed from is left out by
  `read_run` and by SQL.
- A *baseline* is the same task instance trained with the same rng seed and nothing grown (`control` in field names).
  *Utility* is the validation score minus rent for added parameters; *gain* is utility minus the baseline's.
- Validation has two halves: decisions and settling are by the *observed half*; rewards, selection, utility and gain
  are of the *judged half*. Where there is one set (the toy), both are that.
- SQL has the tables `rounds`, `episodes`, `decisions`, `anomalies` and `evaluations` (an event's fields are its
  columns; `case` is called `instance`), `seeds` (one row for each seed's life), `runs`, and `events` for all other
  kinds, with their fields as JSON. Each has the column `run`.

(This page is written by `python scripts/events_page.py > docs/events.md`.)

## Every event

| field | type | |
| --- | --- | --- |
| `kind` | text | which event it is |
| `time` | number | seconds since the epoch |
{place}

The last four are present where they apply.
"""


def events_page() -> str:
    opening = _OPENING.format(version=SCHEMA_VERSION, place=_fields(Place, nullable=False))
    return "\n".join([opening, *(_section(kind, event) for kind, event in KINDS.items())]).rstrip() + "\n"


def _section(kind: str, event: type[Event]) -> str:
    line = json.dumps(json.loads(encode(EXAMPLES[kind])))
    return "\n".join(
        [
            f"## `{kind}`\n",
            dedent(inspect.getdoc(event) or "") + "\n",
            "| field | type | |\n| --- | --- | --- |",
            _fields(event) + "\n",
            f"```json\n{line}\n```\n",
            f"```sql\n{QUERIES[kind]}\n```\n",
        ]
    )


def _fields(cls: type, *, nullable: bool = True) -> str:
    hints, docs = get_type_hints(cls), field_docs(cls)
    return "\n".join(
        f"| `{field.name}` | {_words(hints[field.name], nullable=nullable)} | {docs[field.name]} |"
        for field in fields(cls)
    )


def _words(hint: object, *, nullable: bool = True) -> str:
    """A type as a reader of JSON sees it."""
    plain = {"int": "integer", "float": "number", "str": "text", "bool": "true or false", "NoneType": "null"}
    if isinstance(hint, type) and issubclass(hint, Enum):
        return f"name of a {hint.__name__}"
    if isinstance(hint, type) and hint.__name__ in plain:
        return plain[hint.__name__]
    options = get_args(hint)
    if all(isinstance(option, str) for option in options):
        return " or ".join(f"`{option}`" for option in options)
    if get_origin(hint) is Mapping:
        return f"object of text to {_words(options[1])}"
    return " or ".join(_words(option) for option in options if nullable or option is not type(None))


def field_docs(cls: type) -> dict[str, str]:
    """Field -> the text under it in the source."""
    body = ast.parse(dedent(inspect.getsource(cls))).body[0]
    assert isinstance(body, ast.ClassDef)
    docs: dict[str, str] = {}
    for before, after in zip(body.body, body.body[1:], strict=False):
        named = isinstance(before, ast.AnnAssign) and isinstance(before.target, ast.Name)
        if named and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            assert isinstance(before, ast.AnnAssign)
            assert isinstance(before.target, ast.Name)
            docs[before.target.id] = str(after.value.value)
    return docs


if __name__ == "__main__":
    print(events_page(), end="")
