"""Batches of one: what tests do with worlds, host by host."""

from collections.abc import Sequence

from esper.leyline import ActionSpec, Beginning, HostStep, Settle, Settling, World


def begin_host(world: World, host_idx: int, case: str, seed: int = 0) -> None:
    """Begin one host."""
    world.begin_many([Beginning(host_idx, case, seed)])


def run_epoch(world: World, host_idxs: Sequence[int] = (0,)) -> None:
    """One epoch of some hosts, which wait."""
    world.step_many([HostStep(host_idx) for host_idx in host_idxs])


def act_on(world: World, action: ActionSpec, host_idx: int = 0) -> None:
    """One step of one host."""
    world.step_many([HostStep(host_idx, action)])


def settle_hosts(
    world: World, rent: float, kept: Settle = "worth", *, host_idxs: Sequence[int] = (0,)
) -> None:
    """Settle some hosts as they are."""
    world.step_many([HostStep(host_idx, None, Settling(rent, kept)) for host_idx in host_idxs])
