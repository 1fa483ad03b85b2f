"""The README's Python runs as it stands."""

import re
from pathlib import Path

from esper.kasmina import forget

README = Path(__file__).parents[1] / "README.md"


def test_the_readmes_python_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    assert len(blocks) == 2
    scope: dict[str, object] = {}
    try:
        for block in blocks:
            exec(compile(block, str(README), "exec"), scope)
    finally:
        forget("wide_mlp")
    model = scope["model"]
    assert model.slots["1"].stage.name == "FOSSILIZED"  # type: ignore[attr-defined]


def test_the_python_of_docs_running_runs() -> None:
    text = (README.parent / "docs" / "running.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    exec(compile(block, "running.md", "exec"), {})
