"""Action masks of many hosts at once, from what each slot says may be executed, and which actions a mask allows."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from esper.leyline import ALPHA_TARGETS, STYLES, LifecycleOp, Style
from esper.tamiyo.actions import Actions, GrowthSpace
from esper.tamiyo.layout import ActionLayout

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

_GERMINATE = 1 << LifecycleOp.GERMINATE


def without_germination(legal_bits: Array, affordable: Mask) -> Array:
    """legal_bits (env, slot) without GERMINATE where nothing of affordable (env, slot, blueprint) is left."""
    bits = legal_bits.astype(np.int64)
    return np.where(affordable.any(axis=-1), bits, bits & ~_GERMINATE).astype(np.float64)


# Bits of readings -> one bool per operation.
_OP_ROWS = (np.arange(1 << len(LifecycleOp))[:, np.newaxis] >> np.arange(len(LifecycleOp)) & 1).astype(
    np.bool_
)
_TARGETS = np.array(ALPHA_TARGETS)
_EVERY, _NONE, _NO_GATE = len(STYLES), len(STYLES) + 1, len(STYLES) + 2
# Legal styles by the style of the seed that may be retargeted; then all; then the placeholder; then all but the gate.
_STYLE_ROWS = np.array(
    [
        *([other in one.compatible for other in STYLES] for one in STYLES),
        [True] * len(STYLES),
        [style is STYLES[0] for style in STYLES],
        [style is not Style.GATE for style in STYLES],
    ]
)


class GrowthMasks:
    """Masks (env, layout.width), written in place into memory that is allocated once.

    A row whose parent cannot be chosen keeps its choice 0, so that no row is empty.
    frozen_choices: head -> the index of its only choice, wherever that choice is legal. With a frozen alpha_target,
    a seed that already has this target cannot be sent to another.
    """

    def __init__(
        self, space: GrowthSpace, num_envs: int, frozen_choices: Mapping[str, int] | None = None
    ) -> None:
        layout = space.action_layout
        self._frozen, self._operations = dict(frozen_choices or {}), layout.sizes[0]
        memory = layout.all_legal(num_envs)
        self._blocks: dict[str, Mask] = {head: layout.block(memory, head).numpy() for head in layout.names}
        self.flat: Mask = memory.numpy()
        """(env, layout.width); the blocks of heads are views of it."""
        for head in ("tempo", "alpha_speed", "alpha_curve"):
            self._freeze(head)

    def write(
        self, legal_bits: Array, style: Array, alpha_target: Array, offered: Mask, gate_fits: Mask
    ) -> Mask:
        """From the readings (env, slot) and the offers (env, slot, blueprint); padding has bits 0.

        gate_fits (env, slot) is whether there is room for a gate beside any seed that is offered.
        """
        legal = _OP_ROWS[legal_bits.astype(np.int64), : self._operations]  # (env, slot, op)
        germinate = legal[..., LifecycleOp.GERMINATE]
        retarget = legal[..., LifecycleOp.SET_ALPHA_TARGET]
        if "alpha_target" in self._frozen:  # a seed that is where it may only go cannot be sent elsewhere
            retarget &= alpha_target != _TARGETS[self._frozen["alpha_target"]]
        blocks = self._blocks
        operations = blocks["op"][:, 0]
        legal.any(axis=1, out=operations)
        operations[:, LifecycleOp.WAIT] = True
        blocks["slot"][:] = legal.transpose(0, 2, 1)
        np.logical_and(offered, germinate[..., np.newaxis], out=blocks["blueprint"])
        own_style = np.where(style < 0, _EVERY, style)
        at_birth = np.where(gate_fits, _EVERY, _NO_GATE)
        rows = np.where(germinate, at_birth, np.where(retarget, own_style, _NONE)).astype(np.int64)
        blocks["style"][:] = _STYLE_ROWS[rows]
        other_target = alpha_target[..., np.newaxis] != _TARGETS
        np.logical_and(other_target, (germinate | retarget)[..., np.newaxis], out=blocks["alpha_target"])
        for head in ("slot", "blueprint", "alpha_target"):
            block = blocks[head]
            block[..., 0] |= ~block.any(axis=-1)
        for head in ("op", "slot", "blueprint", "style", "alpha_target"):
            self._freeze(head)
        return self.flat

    def _freeze(self, head: str) -> None:
        if head in self._frozen:
            block, choice = self._blocks[head], self._frozen[head]
            others = np.arange(block.shape[-1]) != choice
            block &= ~(block[..., choice : choice + 1] & others)


class LegalChoices:
    """Checks which actions (env, head) a flat mask (env, layout.width) allows, and draws legal ones."""

    __slots__ = ("_offsets", "_parents", "_relevance", "_sizes", "_strides", "layout")

    def __init__(self, layout: ActionLayout) -> None:
        self.layout = layout
        self._sizes = np.array(layout.sizes)
        self._offsets = np.array(layout.offsets)
        self._parents = np.array([0 if parent is None else parent for parent in layout.parent_indices])
        self._strides = np.where([parent is None for parent in layout.parent_indices], 0, self._sizes)
        self._relevance: NDArray[np.bool_] = layout.relevance.numpy()

    def allowed(self, actions: Actions, masks: Mask) -> NDArray[np.bool_]:
        """(env,) whether every head that matters has a legal choice, given the heads before it."""
        in_range = (actions >= 0) & (actions < self._sizes)
        safe = np.where(in_range, actions, 0)
        index = self._offsets + safe[:, self._parents] * self._strides + safe  # (env, head)
        legal = in_range & np.take_along_axis(masks, index, axis=1)
        relevant = self._relevance[safe[:, 0]]
        verdict: NDArray[np.bool_] = np.logical_and.reduce(legal | ~relevant, axis=1)
        return verdict

    def sample(self, masks: Mask, rng: np.random.Generator) -> Actions:
        """(env, head): head after head, uniform over what is legal; heads that do not matter are 0."""
        actions = np.zeros((len(masks), self.layout.head_count), dtype=np.int64)
        for env_idx, mask in enumerate(masks):
            chosen = actions[env_idx]
            for head in range(self.layout.head_count):
                if not self._relevance[chosen[0], head] and head:
                    continue
                legal = np.flatnonzero(self.row(chosen, mask, head))
                chosen[head] = legal[rng.integers(len(legal))]
        return actions

    def row(self, chosen: Actions, mask: Mask, head: int) -> Mask:
        """What one head may be under a mask (width,), given the heads before it in `chosen` (head,)."""
        start = self._offsets[head] + chosen[self._parents[head]] * self._strides[head]
        row: Mask = mask[start : start + self._sizes[head]]
        return row
