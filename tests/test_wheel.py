"""What is built installs into an empty environment under its own name, and the README's quick start runs there."""

import os
import re
import subprocess
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def run(*command: str | Path, cwd: Path) -> str:
    """What a command prints, with no esper but the installed one in sight."""
    outside = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=outside, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_what_is_built_installs_and_runs(kind: str, tmp_path: Path) -> None:
    venv.create(tmp_path / "tools", with_pip=True)
    tools = tmp_path / "tools" / "bin"
    run(tools / "pip", "install", "--quiet", "build", cwd=tmp_path)
    run(tools / "python", "-m", "build", f"--{kind}", "--outdir", tmp_path / "built", ROOT, cwd=tmp_path)
    (built,) = (tmp_path / "built").iterdir()
    assert built.name.startswith("esper_grow-")
    venv.create(tmp_path / "empty", with_pip=True)
    fresh = tmp_path / "empty" / "bin"
    run(fresh / "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", built, cwd=tmp_path)
    assert run(fresh / "python", "-c", "import esper; print(esper.__file__)", cwd=tmp_path).startswith(
        str(tmp_path / "empty")
    )
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    (tmp_path / "quick_start.py").write_text(f"{block}\nprint(type(plain).__name__)\n")
    assert run(fresh / "python", "quick_start.py", cwd=tmp_path).split()[-1] == "Sequential"
    assert "cpu-v1" in run(fresh / "esper", "controllers", cwd=tmp_path)
