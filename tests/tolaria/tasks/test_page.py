"""The page about tasks is current, and its Python runs."""

import re
from pathlib import Path

from esper.kasmina import GrowingModel
from esper.tolaria.tasks import forget
from tasks_page import tasks_page

PAGE = Path(__file__).parents[3] / "docs" / "tasks.md"


def test_the_page_is_what_the_table_says() -> None:
    assert PAGE.read_text() == tasks_page(), "run: python scripts/tasks_page.py > docs/tasks.md"


def test_the_pages_python_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        scope: dict[str, object] = {}
        exec(compile(block, str(PAGE), "exec"), scope)
        model = scope["model"]
        assert isinstance(model, GrowingModel)
        assert model.legal_operations()
    forget("rings")
