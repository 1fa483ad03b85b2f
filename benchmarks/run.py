"""Run every benchmark, one process each: `make bench`, or `python benchmarks/run.py --quick`."""

import subprocess
import sys
from pathlib import Path


def main() -> int:
    failed = [
        script.name
        for script in sorted(Path(__file__).parent.glob("bench_*.py"))
        if subprocess.run([sys.executable, str(script), *sys.argv[1:]], check=False).returncode
    ]
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
