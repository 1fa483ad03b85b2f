"""Over how many rounds something is annealed."""


def annealing_steps(given: int | None, rounds: int, *, share: float = 1.0) -> int:
    """What was given; None is a share of all rounds, at least one. 0 is never."""
    return max(1, round(share * rounds)) if given is None else given
