"""`import esper` in a fresh interpreter (goal: under 0.3 s), beside doing nothing and importing torch."""

import subprocess
import sys
import time

from harness import Row, arguments, median_milliseconds, report


def seconds(statement: str) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", statement], check=True)
    return time.perf_counter() - began


def main() -> None:
    options = arguments(__doc__ or "")
    rounds = 3 if options.quick else 15
    statements = {
        "nothing": "pass",
        "import esper": "import esper",
        "import esper.leyline": "import esper.leyline",
        "import torch": "import torch",
        "import esper; esper.wrap": "import esper; esper.wrap",
    }
    times: dict[str, list[float]] = {name: [] for name in statements}
    for _ in range(rounds):
        for name, statement in statements.items():
            times[name].append(seconds(statement))
    nothing = median_milliseconds(times["nothing"])
    rows: list[Row] = [
        {
            "statement": name,
            "ms": median_milliseconds(t),
            "ms above nothing": median_milliseconds(t) - nothing,
        }
        for name, t in times.items()
    ]
    report("import", "Import time, fresh interpreters, medians", rows)


if __name__ == "__main__":
    main()
