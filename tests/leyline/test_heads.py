import ast
from pathlib import Path

import pytest

import esper
from esper.leyline import (
    ALPHA_SPEEDS,
    ALPHA_TARGETS,
    CAUSAL_TABLE,
    HEAD_NAMES,
    TEMPOS,
    ActionDict,
    Composition,
    Curve,
    HeadEntropies,
    HeadLogProbs,
    LifecycleOp,
    Style,
    operations,
)

SOURCE = Path(esper.__file__).parent


def test_heads_in_sampling_order() -> None:
    assert HEAD_NAMES == (
        "op", "slot", "blueprint", "style", "tempo", "alpha_target", "alpha_speed", "alpha_curve",
    )  # fmt: skip


def test_choices() -> None:
    assert [op.name for op in LifecycleOp] == [
        "WAIT", "GERMINATE", "SET_ALPHA_TARGET", "PRUNE", "FOSSILIZE", "ADVANCE", "RETIRE",
    ]  # fmt: skip
    assert operations(retire=True) == tuple(LifecycleOp)
    assert (
        operations(retire=False) == tuple(LifecycleOp)[:6]
    )  # what every controller without RETIRE was made for
    assert len(Style) == 4
    assert TEMPOS == (3, 5, 8)
    assert ALPHA_TARGETS == (0.5, 0.7, 1.0)
    assert ALPHA_SPEEDS == (0, 3, 5, 8)
    assert len(Curve) == 5


def test_styles_name_composition_and_first_curve() -> None:
    assert [(s.composition, s.first_curve) for s in Style] == [
        (Composition.ADD, Curve.LINEAR),
        (Composition.ADD, Curve.SIGMOID_NORMAL),
        (Composition.MULTIPLY, Curve.LINEAR),
        (Composition.GATE, Curve.LINEAR),
    ]


@pytest.mark.parametrize(
    ("operation", "relevant"),
    [
        ("WAIT", {"op"}),
        ("GERMINATE", {"op", "slot", "blueprint", "style", "tempo", "alpha_target"}),
        ("SET_ALPHA_TARGET", {"op", "slot", "style", "alpha_target", "alpha_speed", "alpha_curve"}),
        ("PRUNE", {"op", "slot", "alpha_speed", "alpha_curve"}),
        ("FOSSILIZE", {"op", "slot"}),
        ("ADVANCE", {"op", "slot"}),
        ("RETIRE", {"op", "slot", "alpha_speed", "alpha_curve"}),
    ],
)
def test_causal_table(operation: str, relevant: set[str]) -> None:
    assert set(CAUSAL_TABLE[LifecycleOp[operation]]) == relevant


def test_causal_table_covers_every_operation() -> None:
    assert set(CAUSAL_TABLE) == set(LifecycleOp)


@pytest.mark.parametrize("typed", [ActionDict, HeadLogProbs, HeadEntropies])
def test_typed_dicts_have_the_heads_as_keys(typed: type) -> None:
    assert tuple(typed.__annotations__) == HEAD_NAMES


def test_nobody_else_lists_the_heads() -> None:
    """SPEC A3: the one literal that names every head is in leyline/heads.py."""
    complete = [
        f"{path.relative_to(SOURCE)}:{node.lineno}"
        for path in sorted(SOURCE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Tuple | ast.List | ast.Set | ast.Dict) and set(HEAD_NAMES) <= _strings(node)
    ]
    assert len(complete) == 1, complete
    assert complete[0].startswith("leyline/heads.py:")


def _strings(node: ast.Tuple | ast.List | ast.Set | ast.Dict) -> set[object]:
    members = node.keys if isinstance(node, ast.Dict) else node.elts
    return {member.value for member in members if isinstance(member, ast.Constant)}
