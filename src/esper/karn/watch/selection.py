"""What one visitor looks at. It lives in the address, so that a reload, or a new server, shows the same."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlencode

from esper.karn.watch.palette import THEMES, ThemeName

MOST_BESIDE = 5


@dataclass(slots=True)
class Selection:
    run: str | None = None
    beside: list[str] = field(default_factory=list)
    """Runs that are drawn beside it."""
    theme: ThemeName | None = None
    """None follows the browser."""
    env: int | None = None
    episode: int | None = None
    """None, with env, follows the last episode that ended."""
    epoch: int | None = None

    @staticmethod
    def of(query: Mapping[str, str], beside: Sequence[str]) -> "Selection":
        """From an address; what makes no sense there is left out."""
        theme = query.get("theme")
        env, episode, epoch = (_count(query.get(name)) for name in ("env", "episode", "epoch"))
        return Selection(
            run=query.get("run") or None,
            beside=[name for name in beside if name][:MOST_BESIDE],
            theme=next((name for name in THEMES if name == theme), None),
            env=env if episode is not None else None,
            episode=episode if env is not None else None,
            epoch=epoch,
        )

    def address(self) -> str:
        parts: list[tuple[str, str | int]] = [] if self.run is None else [("run", self.run)]
        parts += [("beside", name) for name in self.beside]
        parts += [
            (name, value)
            for name, value in (
                ("theme", self.theme),
                ("env", self.env),
                ("episode", self.episode),
                ("epoch", self.epoch),
            )
            if value is not None
        ]
        return "/?" + urlencode(parts) if parts else "/"


def _count(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 19 else None
