"""Gymnasium ids, registered when both Gymnasium and esper have been imported, in whichever order.

Gymnasium is heavy and looks for no plugins, so `import esper` does not import it but waits for it.
"""

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

SUITES = ("toy", "digits", "mnist1d", "shift", "cpu")
"""Suites with an id of their own: esper/Growth-<suite>-v0."""
_NAME = "gymnasium"


def register_environments() -> None:
    """Register esper/Growth-<suite>-v0 with Gymnasium, for `make` and `make_vec`."""
    import gymnasium

    for suite in SUITES:
        env_id = f"esper/Growth-{suite}-v0"
        if env_id not in gymnasium.registry:
            gymnasium.register(
                env_id,
                entry_point="esper.simic.env.making:make_single_env",
                vector_entry_point="esper.simic.env.making:make_registered_vector_env",
                kwargs={"suite": suite},
            )


def register_when_gymnasium_comes() -> None:
    if _NAME in sys.modules:
        register_environments()
    elif not any(isinstance(finder, _Waiter) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Waiter())


class _Waiter(MetaPathFinder):
    """Registers after Gymnasium once that is imported. Merely being asked where it is changes nothing."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _NAME:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = _ThenRegister(spec.loader, self)
                return spec
        return None


class _ThenRegister(Loader):
    def __init__(self, loader: Loader, waiter: _Waiter) -> None:
        self._loader, self._waiter = loader, waiter

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader  # as if nobody had waited
        if self._waiter in sys.meta_path:
            sys.meta_path.remove(self._waiter)
        self._loader.exec_module(module)
        register_environments()
