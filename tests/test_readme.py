"""The README's Python runs as it stands."""

import re
from pathlib import Path

import pytest

from esper.kasmina import forget

README = Path(__file__).parents[1] / "README.md"


def test_the_readmes_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESPER_CACHE", str(tmp_path))
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    assert len(blocks) == 3
    scope: dict[str, object] = {}
    try:
        for block in blocks:
            exec(compile(block, str(README), "exec"), scope)
    finally:
        forget("wide_mlp")
    model = scope["model"]
    assert model.slots["1"].stage.name == "FOSSILIZED"  # type: ignore[attr-defined]


@pytest.mark.parametrize("page", ["running.md", "environments.md", "benchmark.md"])
def test_the_python_of_the_docs_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESPER_CACHE", str(tmp_path))
    text = (README.parent / "docs" / page).read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, page, "exec"), {})
