import subprocess
import sys

import pytest

from esper.leyline import SlotConfig, Stage


def _imported_after(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(' '.join(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(result.stdout.split())


@pytest.mark.parametrize("statement", ["import esper", "import esper.leyline"])
def test_contracts_import_nothing_heavy(statement: str) -> None:
    assert not {"torch", "numpy", "rich", "sklearn"} & _imported_after(statement)


def test_unknown_public_name() -> None:
    import esper

    with pytest.raises(AttributeError, match="no attribute 'warp'"):
        esper.warp  # noqa: B018


def test_all_public_names_resolve() -> None:
    import esper

    assert all(getattr(esper, name) is not None for name in esper.__all__)
    assert set(dir(esper)) == {*esper.__all__, "__version__"}


def test_live_stages() -> None:
    assert [stage.name for stage in Stage if stage.is_live] == ["TRAINING", "BLENDING", "HOLDING"]


def test_slot_config_order() -> None:
    config = SlotConfig(("b", "a"))
    assert (len(config), config.index("b"), config.index("a")) == (2, 0, 1)


def test_slot_config_refuses_nonsense() -> None:
    with pytest.raises(ValueError, match="empty"):
        SlotConfig(())
    with pytest.raises(ValueError, match="names a more than once"):
        SlotConfig(("a", "b", "a"))
    with pytest.raises(ValueError, match="unknown slot 'c'; the slots are a, b"):
        SlotConfig(("a", "b")).index("c")


def test_slot_configs_are_compared_with_their_order() -> None:
    ours = SlotConfig(("a", "b"))
    ours.require_same(SlotConfig(("a", "b")), ours="the policy", theirs="the buffer")
    with pytest.raises(ValueError, match=r"the policy has \(a, b\), the buffer has \(b, a\)"):
        ours.require_same(SlotConfig(("b", "a")), ours="the policy", theirs="the buffer")
