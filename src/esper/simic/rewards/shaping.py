"""Potential-based shaping (Ng, Harada and Russell 1999) with the utility as potential.

    F(s, s') = gamma phi(s') - phi(s),  phi = U,  phi(terminal) = 0

It telescopes, so it changes no optimum: over an episode of T steps with the utility U_T paid at the end,

    sum over t of gamma^t r_t = gamma^(T-1) U_T - phi(s_0).

A truncated state is no terminal one: its potential stays, as the value that bootstraps from it does.
"""


def potentials(before: float, after: float, *, gamma: float, terminated: bool) -> tuple[float, float]:
    """(gamma phi(s'), -phi(s)) for utilities `before` and `after`."""
    return (0.0 if terminated else gamma * after), -before
