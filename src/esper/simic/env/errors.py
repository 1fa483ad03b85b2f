"""What an environment refuses."""

from esper.leyline import IllegalChoice


class IllegalActionError(ValueError):
    """An action that the mask forbids, where illegal actions are errors."""

    def __init__(self, env_idx: int, choice: IllegalChoice) -> None:
        self.env_idx, self.choice = env_idx, choice
        super().__init__(
            f"env {env_idx}: head {choice.head!r} chose {choice.value}, which is illegal now; "
            f"legal: {', '.join(choice.legal)}"
        )

    def __reduce__(self) -> tuple[type["IllegalActionError"], tuple[int, IllegalChoice]]:
        return type(self), (self.env_idx, self.choice)
