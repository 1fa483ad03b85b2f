"""The factored action space as data: its heads, what conditions each, and which head matters when.

Everything conditional is laid out in one flat vector per step. A head with `n` choices whose parent head
has `p` choices owns a block of `p * n` entries, one row per choice of the parent; a head without a parent
owns one row. Masks and logits share this layout, so a whole factored decision travels as one tensor.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import TypeAlias, cast

import torch
from torch import Tensor

from esper.leyline import (
    CAUSAL_TABLE,
    CHOICES,
    HEAD_NAMES,
    ActionDict,
    HeadLogProbs,
    LifecycleOp,
    SlotConfig,
    operations,
)

GROWTH_PARENTS: Mapping[str, str] = {
    "slot": "op",
    "blueprint": "slot",
    "style": "slot",
    "tempo": "slot",
    "alpha_target": "slot",
    "alpha_speed": "op",
    "alpha_curve": "op",
}
"""head -> the earlier head whose choice selects its row of logits and masks. `op` has none."""

CausalTable: TypeAlias = Mapping[int, Sequence[str]] | Mapping[LifecycleOp, Sequence[str]]
"""choice of the first head -> the heads it makes relevant."""


def compute_causal_masks(
    op_actions: Tensor,
    *,
    causal_table: CausalTable = CAUSAL_TABLE,
    head_names: Sequence[str] = HEAD_NAMES,
) -> dict[str, Tensor]:
    """head -> bool tensor of op_actions' shape: True where the operation makes the head relevant.

    op_actions are choices of the first head. `ActionLayout.relevance` is this for every choice; sampling, loss,
    entropy and KL index it.
    """
    if sorted(causal_table) != list(range(len(causal_table))):
        raise ValueError(
            f"causal_table has rows for {sorted(causal_table)}; expected 0..{len(causal_table) - 1}"
        )
    for choice, relevant in causal_table.items():
        unknown = set(relevant) - set(head_names)
        if unknown:
            raise ValueError(f"causal_table[{choice}] names unknown heads {sorted(unknown)}")
        if head_names[0] not in relevant:
            raise ValueError(f"causal_table[{choice}] leaves out {head_names[0]!r}, which is always relevant")
    rows = [[name in relevant for name in head_names] for _, relevant in sorted(causal_table.items())]
    table = torch.tensor(rows, device=op_actions.device)  # (choice of the first head, head)
    return dict(zip(head_names, table[op_actions].unbind(-1), strict=True))


@dataclass(frozen=True)
class ActionLayout:
    """Heads in sampling order. The first head's choice decides, by the causal table, which others matter.

    >>> table = {0: ("kind",), 1: ("kind", "target")}
    >>> ActionLayout(names=("kind", "target"), sizes=(2, 5), causal_table=table)
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    parents: Mapping[str, str] = field(default_factory=dict)
    """head -> the earlier head that selects its row; heads not named have one row."""
    causal_table: CausalTable | None = None
    """choice of the first head -> the heads it makes relevant; None: every head always is."""
    slot_config: SlotConfig | None = None
    """Slot ids in order, for layouts that point at slots; compared when parts meet."""

    def __post_init__(self) -> None:
        if not self.names or len(self.names) != len(self.sizes):
            raise ValueError(
                f"names {self.names} and sizes {self.sizes} must be as long as each other, and not empty"
            )
        if len(set(self.names)) != len(self.names):
            raise ValueError(f"names {self.names} repeats a head")
        if min(self.sizes) < 1:
            raise ValueError(f"sizes {self.sizes}: every head needs at least one choice")
        for child, parent in self.parents.items():
            if child not in self.names or parent not in self.names:
                raise ValueError(f"parents has {child!r} -> {parent!r}; the heads are {self.names}")
            if self.names.index(parent) >= self.names.index(child):
                raise ValueError(f"parents has {child!r} -> {parent!r}; a parent is sampled before its child")
        _ = self.relevance  # raises on a bad causal table

    @property
    def head_count(self) -> int:
        """Number of heads."""
        return len(self.names)

    @cached_property
    def relevance(self) -> Tensor:
        """(choice of the first head, head) bool."""
        if self.causal_table is None:
            return torch.ones(self.sizes[0], len(self.names), dtype=torch.bool)
        if len(self.causal_table) != self.sizes[0]:
            raise ValueError(
                f"causal_table has rows for {sorted(self.causal_table)}; head {self.names[0]!r} has "
                f"{self.sizes[0]} choices"
            )
        masks = compute_causal_masks(
            torch.arange(self.sizes[0]), causal_table=self.causal_table, head_names=self.names
        )
        return torch.stack(tuple(masks.values()), dim=-1)

    @cached_property
    def parent_indices(self) -> tuple[int | None, ...]:
        """Position of each head's parent; None without one."""
        return tuple(
            self.names.index(self.parents[name]) if name in self.parents else None for name in self.names
        )

    @cached_property
    def rows(self) -> tuple[int, ...]:
        """Rows of each head's block: choices of its parent, or 1."""
        return tuple(1 if parent is None else self.sizes[parent] for parent in self.parent_indices)

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Where each head's block begins in the flat vector."""
        ends = accumulate(rows * size for rows, size in zip(self.rows, self.sizes, strict=True))
        return (0, *ends)[:-1]

    @cached_property
    def width(self) -> int:
        """Entries of the flat vector."""
        return sum(rows * size for rows, size in zip(self.rows, self.sizes, strict=True))

    @cached_property
    def levels(self) -> tuple[tuple[int, ...], ...]:
        """Heads by depth: all of one level can be sampled at once, given the levels before it.

        Relevance depends on the first head, so every other head is at least at depth 1 when there is a table.
        """
        depth: list[int] = []
        for head, parent in enumerate(self.parent_indices):
            own = 0 if parent is None else depth[parent] + 1
            depth.append(max(own, 1) if head and self.causal_table is not None else own)
        return tuple(
            tuple(head for head in range(len(depth)) if depth[head] == level)
            for level in range(max(depth) + 1)
        )

    def flatten_masks(self, masks: Mapping[str, Tensor]) -> Tensor:
        """Per-head masks -> flat (..., width). Each is (..., rows, size), or (..., size) to serve every row.

        A head that is left out is wholly legal.
        """
        unknown = set(masks) - set(self.names)
        if unknown or not masks:
            raise ValueError(f"masks names {sorted(unknown)}; give at least one of the heads {self.names}")
        first, rows = next(
            (name, rows) for name, rows in zip(self.names, self.rows, strict=True) if name in masks
        )
        leading = masks[first].shape[: -1 if rows == 1 else -2]
        blocks = []
        for name, rows, size in zip(self.names, self.rows, self.sizes, strict=True):
            mask = masks.get(name, torch.ones(size, dtype=torch.bool, device=masks[first].device))
            if mask.dtype != torch.bool:
                raise ValueError(f"mask of head {name!r} has dtype {mask.dtype}; expected torch.bool")
            if mask.shape[-1] != size:
                raise ValueError(f"mask of head {name!r} ends in {mask.shape[-1]}; expected {size} choices")
            if mask.shape == (*leading, size):
                mask = mask.unsqueeze(-2)
            try:
                mask = mask.expand(*leading, rows, size)
            except RuntimeError as error:
                raise ValueError(
                    f"mask of head {name!r} has shape {tuple(mask.shape)}; expected {(*leading, rows, size)}"
                ) from error
            blocks.append(mask.reshape(*leading, rows * size))
        return torch.cat(blocks, dim=-1)

    def block(self, flat: Tensor, name: str) -> Tensor:
        """The block of one head as a view: flat (..., width) -> (..., rows, size)."""
        head = self.names.index(name)
        rows, size, start = self.rows[head], self.sizes[head], self.offsets[head]
        block: Tensor = flat[..., start : start + rows * size].unflatten(-1, (rows, size))
        return block

    def all_legal(self, batch: int, device: torch.device | str = "cpu") -> Tensor:
        """A mask (batch, width) that forbids nothing."""
        return torch.ones(batch, self.width, dtype=torch.bool, device=device)

    def require_same(self, other: "ActionLayout", *, ours: str, theirs: str) -> None:
        """Raise unless both have the same heads, sizes, conditions and slots."""
        if self.slot_config is not None and other.slot_config is not None:
            self.slot_config.require_same(other.slot_config, ours=ours, theirs=theirs)
        if (self.slot_config is None) != (other.slot_config is None):
            raise ValueError(f"slot layouts differ: only one of {ours} and {theirs} has slots")
        for what in ("names", "sizes", "parent_indices"):
            if getattr(self, what) != getattr(other, what):
                raise ValueError(
                    f"action layouts differ in {what}: {ours} has {getattr(self, what)}, "
                    f"{theirs} has {getattr(other, what)}"
                )
        if not torch.equal(self.relevance, other.relevance):
            raise ValueError(f"action layouts differ: {ours} and {theirs} have different causal tables")


def growth_layout(
    slot_config: SlotConfig,
    blueprints: int,
    causal_table: CausalTable = CAUSAL_TABLE,
    *,
    retire: bool = False,
) -> ActionLayout:
    """The layout of a growth decision over these slots, with as many blueprints as are offered anywhere.

    retire  whether RETIRE is one of the operations
    """
    known = operations(retire=retire)
    sizes = {head: len(choices) for head, choices in CHOICES.items()}
    sizes |= {"op": len(known), "slot": len(slot_config), "blueprint": blueprints}
    return ActionLayout(
        names=HEAD_NAMES,
        sizes=tuple(sizes[name] for name in HEAD_NAMES),
        parents=GROWTH_PARENTS,
        causal_table={op: heads for op, heads in causal_table.items() if op in known},
        slot_config=slot_config,
    )


def discrete_layout(choices: int) -> ActionLayout:
    """One head named `action`."""
    return ActionLayout(names=("action",), sizes=(choices,))


def multi_discrete_layout(sizes: Sequence[int]) -> ActionLayout:
    """Independent heads named `action_0`, `action_1`, ..."""
    return ActionLayout(names=tuple(f"action_{head}" for head in range(len(sizes))), sizes=tuple(sizes))


def growth_actions(actions: Tensor) -> ActionDict:
    """actions (..., head) in HEAD_NAMES order -> one tensor (...) per head."""
    return cast(ActionDict, _by_head(actions))


def growth_log_probs(log_probs: Tensor) -> HeadLogProbs:
    """log_probs (..., head) in HEAD_NAMES order -> one tensor (...) per head."""
    return cast(HeadLogProbs, _by_head(log_probs))


def _by_head(values: Tensor) -> dict[str, Tensor]:
    if values.shape[-1] != len(HEAD_NAMES):
        raise ValueError(
            f"the last axis has {values.shape[-1]} entries; expected the {len(HEAD_NAMES)} growth heads"
        )
    return dict(zip(HEAD_NAMES, values.unbind(-1), strict=True))
