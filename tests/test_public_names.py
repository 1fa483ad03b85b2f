"""What `esper` exports resolves, says what it is, and is on an API page; pages name only what exists."""

import ast
import inspect
import re
import textwrap
from importlib import import_module
from pathlib import Path

import pytest

import esper

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
API = re.findall(
    r"^::: (\S+)$", "\n".join(page.read_text() for page in sorted((DOCS / "api").glob("*.md"))), re.MULTILINE
)
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]


def resolve(path: str) -> object:
    """The object at a dotted path: the longest importable part is the module."""
    parts = path.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found: object = import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for name in parts[count:]:
            found = getattr(found, name)
        return found
    raise ModuleNotFoundError(path)


def test_the_lazy_table_is_what_is_exported() -> None:
    assert list(esper.__all__) == sorted(esper._HOMES)
    accepted = {
        "ActionSpec",
        "BenchRequest",
        "DecisionSettings",
        "GovernorRules",
        "RewardConfig",
        "Situation",
    }
    assert accepted <= set(esper.__all__)
    with pytest.raises(AttributeError, match="module 'esper' has no attribute 'Growr'"):
        esper.__getattr__("Growr")


@pytest.mark.parametrize("name", esper.__all__)
def test_an_exported_name_resolves_is_documented_and_on_an_api_page(name: str) -> None:
    found = getattr(esper, name)
    assert own_docstring(found), f"esper.{name} has no docstring"
    assert any(resolve(path) is found for path in API), f"esper.{name} is on no page of docs/api"


def own_docstring(found: object) -> str | None:
    """What is written there; a dataclass without one is given its signature."""
    text = inspect.getdoc(found)
    return None if text is None or text.startswith(f"{getattr(found, '__name__', '')}(") else text


@pytest.mark.parametrize("path", API)
def test_what_is_public_on_an_api_page_has_a_docstring(path: str) -> None:
    found = resolve(path)
    assert own_docstring(found), f"{path} has no docstring"
    if inspect.isclass(found):
        missing = _members(found)
        assert not missing, f"{path}: no docstring for {', '.join(missing)}"


def _members(cls: type) -> list[str]:
    """Public methods, properties and annotated attributes of a class's own body that are not explained."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(tree, ast.ClassDef)
    missing = []
    for node, after in zip(tree.body, [*tree.body[1:], None], strict=True):
        if isinstance(node, ast.FunctionDef):  # an override may leave it to its base
            missing += [] if inspect.getdoc(getattr(cls, node.name)) else [node.name]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            explained = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            missing += [] if explained else [node.target.id]
    return [name for name in missing if not name.startswith("_")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_name_only_what_exists(page: Path) -> None:
    """`esper.a.b` in backquotes or an import can be imported; paths of the source tree exist."""
    text = page.read_text()
    for path in set(re.findall(r"`(esper(?:\.\w+)+)", text)):
        resolve(path)
    for module, names in re.findall(r"^from (esper[\w.]*) import ([\w, ]+)$", text, re.MULTILINE):
        for name in names.split(","):
            resolve(f"{module}.{name.strip()}")
    for path in set(re.findall(r"\(((?:src|docs|examples|benchmarks)/[\w./-]+)[)#]", text)):
        assert (ROOT / path).exists(), path


def test_the_map_leads_to_files() -> None:
    text = (DOCS / "map.md").read_text().partition("## The model")[2]
    links = re.findall(r"\[`([\w/]+(?:\.py|/))`\]\((\S+)\)", text)
    assert len(links) > 40
    assert len(links) == len(re.findall(r"`[\w/]+(?:\.py|/)`", text))
    for path, target in links:
        home = ROOT if path.startswith("scripts/") else ROOT / "src" / "esper"
        assert (home / path).exists(), path
        assert (DOCS / target).resolve() == home / path
