"""The distribution over a whole factored decision: sampled level by level, evaluated all heads at once."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from esper.tamiyo.layout import ActionLayout


class MaskedCategorical:
    """p(a) = softmax(logits over legal a), exactly 0 elsewhere; mixed with uniform(legal) when `floor` > 0.

    logits (..., choice) of any float type, read as float32; mask (..., choice) bool, True where legal.
    `floor` e gives (1 - e) p + e / n_legal: a floor that, unlike clamping, keeps every gradient alive.
    """

    def __init__(self, logits: Tensor, mask: Tensor, *, floor: float = 0.0) -> None:
        if logits.shape != mask.shape:
            raise ValueError(
                f"logits have shape {tuple(logits.shape)}, mask {tuple(mask.shape)}; expected equal"
            )
        if mask.dtype != torch.bool:
            raise ValueError(f"mask has dtype {mask.dtype}; expected torch.bool")
        if not 0.0 <= floor < 1.0:
            raise ValueError(f"floor is {floor}; expected 0 <= floor < 1")
        require_rows(mask.any(-1), "mask row {} has no legal choice; a mask must allow at least one")
        self.mask = mask
        log_probs = torch.log_softmax(logits.float().masked_fill(~mask, -math.inf), dim=-1)
        self.log_probs = mix_with_uniform(log_probs, mask, floor) if floor else log_probs
        """(..., choice); -inf where masked."""

    @property
    def probs(self) -> Tensor:
        """(..., choice); exactly 0 where masked."""
        return self.log_probs.exp()

    def log_prob(self, actions: Tensor) -> Tensor:
        """log p(a) for actions (...)."""
        return self.log_probs.gather(-1, actions.unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> Tensor:
        """H = - sum_a p(a) log p(a), with 0 log 0 = 0."""
        finite = self.log_probs.masked_fill(~self.mask, 0.0)
        return -(self.log_probs.exp() * finite).sum(-1)

    def mode(self) -> Tensor:
        """The most probable choice (...)."""
        return self.log_probs.argmax(-1)

    def sample(self, generator: torch.Generator) -> Tensor:
        """argmax_a (log p(a) + Gumbel noise); a masked choice is never drawn."""
        noise = gumbel_noise(self.log_probs.shape, generator, self.log_probs.device)
        return (self.log_probs + noise).argmax(-1)


def mix_with_uniform(log_probs: Tensor, mask: Tensor, floor: float) -> Tensor:
    """log((1 - e) p + e / n_legal) over legal choices, -inf elsewhere; a lone choice keeps exactly 0."""
    n_legal = mask.sum(-1, keepdim=True)
    uniform = math.log(floor) - n_legal.float().log()
    legal = log_probs.masked_fill(~mask, 0.0)
    mixed = torch.logaddexp(legal + math.log1p(-floor), uniform).masked_fill(~mask, -math.inf)
    return torch.where(n_legal > 1, mixed, log_probs)


def gumbel_noise(shape: torch.Size, generator: torch.Generator, device: torch.device) -> Tensor:
    """-log E with E ~ Exp(1): the argmax of log p plus this noise is a draw from p."""
    noise = torch.empty(shape, device=device).exponential_(generator=generator)
    return noise.clamp_min_(torch.finfo(noise.dtype).tiny).log_().neg_()


def require_rows(fine: Tensor, problem: str) -> None:
    """Raise for the first row that is not fine. Asynchronous on CUDA: there the error surfaces at the next sync."""
    if fine.is_cuda:
        torch._assert_async(fine.all(), problem.format("(some)"))
    elif not fine.all():
        raise ValueError(problem.format(fine.logical_not().nonzero()[0].tolist()))


@dataclass(frozen=True, slots=True)
class HeadEvaluation:
    """What is known of given actions, per head."""

    log_prob: Tensor
    """(..., head) float32; exactly 0 where the head is irrelevant."""
    entropy: Tensor
    """(..., head) float32; exactly 0 where the head is irrelevant or has one legal choice."""
    relevant: Tensor
    """(..., head) bool, by the causal table."""
    legal_choices: Tensor
    """(..., head) int64; 1 where irrelevant."""

    @property
    def has_choice(self) -> Tensor:
        """(..., head) bool: relevant, with two or more legal choices."""
        return self.legal_choices >= 2

    @property
    def forced(self) -> Tensor:
        """(...) bool: nothing could have been chosen otherwise along this decision."""
        return ~self.has_choice.any(-1)


@dataclass(frozen=True, slots=True)
class HeadGroup:
    """The constants of some heads on one device, so that they are treated together."""

    heads: Tensor
    """(head,) positions in the layout."""
    parent: Tensor
    """(head,) position of the parent head; 0 where there is none (and stride 0 makes it harmless)."""
    offset: Tensor
    """(head,) start of the head's block."""
    stride: Tensor
    """(head,) entries from one row of the block to the next."""
    choice: Tensor
    """(head, choice) 0..size-1, then repeated to stay inside the block."""
    in_head: Tensor
    """(head, choice) bool: False in the padding."""

    @staticmethod
    def of(layout: ActionLayout, heads: tuple[int, ...], device: torch.device) -> "HeadGroup":
        """The constants of these heads."""
        parents = [layout.parent_indices[head] for head in heads]
        sizes = torch.tensor([layout.sizes[head] for head in heads])
        choice = torch.arange(max(layout.sizes))
        stride = [0 if layout.parent_indices[head] is None else layout.sizes[head] for head in heads]
        return HeadGroup(
            heads=torch.tensor(heads, device=device),
            parent=torch.tensor([parent or 0 for parent in parents], device=device),
            offset=torch.tensor([layout.offsets[head] for head in heads], device=device),
            stride=torch.tensor(stride, device=device),
            choice=torch.minimum(choice, sizes.unsqueeze(-1) - 1).to(device),
            in_head=(choice < sizes.unsqueeze(-1)).to(device),
        )

    def row_index(self, actions: Tensor) -> Tensor:
        """Flat positions (..., head, choice) of the rows that these actions (..., all heads) select."""
        start = self.offset + actions.index_select(-1, self.parent) * self.stride
        return start.unsqueeze(-1) + self.choice


class LayoutTensors:
    """A layout's constants on one device, built once and shared by every distribution there."""

    def __init__(self, layout: ActionLayout, device: torch.device) -> None:
        self.layout = layout
        self.width = max(layout.sizes)
        self.canonical = (torch.arange(self.width) == 0).to(device)  # (choice,)
        self.relevance = layout.relevance.to(device)  # (choice of the first head, head)
        self.levels = tuple(HeadGroup.of(layout, level, device) for level in layout.levels)
        self.every_head = HeadGroup.of(layout, tuple(range(layout.head_count)), device)


class FactoredDistribution:
    """p(a) = product over heads of p(a_head | the earlier choices that head depends on).

    flat logits and masks (..., layout.width). A head that the first head's choice makes irrelevant collapses
    to its choice 0, with log-prob and entropy exactly 0 and no gradient.
    """

    def __init__(self, constants: LayoutTensors, logits: Tensor, mask: Tensor, *, floor: float = 0.0) -> None:
        width = constants.layout.width
        if logits.shape != mask.shape or logits.shape[-1] != width:
            raise ValueError(
                f"logits have shape {tuple(logits.shape)}, mask {tuple(mask.shape)}; both must end in {width}"
            )
        if mask.dtype != torch.bool:
            raise ValueError(f"mask has dtype {mask.dtype}; expected torch.bool")
        self.constants, self.logits, self.mask, self.floor = constants, logits, mask, floor

    def sample(self, generator: torch.Generator) -> Tensor:
        """Draw actions (..., head)."""
        constants = self.constants
        shape = torch.Size((*self.logits.shape[:-1], constants.layout.head_count, constants.width))
        return self._choose(gumbel_noise(shape, generator, self.logits.device))

    def mode(self) -> Tensor:
        """The greedy choice, head by head, (..., head)."""
        return self._choose(None)

    def evaluate(self, actions: Tensor) -> HeadEvaluation:
        """Log-probabilities and entropies of actions (..., head). Sampling reports these very numbers.

        A head that does not matter may hold any choice: it is read as the canonical one.
        """
        rows, relevant = self._along(actions)
        chosen = torch.where(relevant, actions, 0)
        return HeadEvaluation(rows.log_prob(chosen), rows.entropy(), relevant, rows.mask.sum(-1))

    def choice_probabilities(self, actions: Tensor) -> tuple[Tensor, Tensor]:
        """(..., head, choice): how probable each choice was, given these actions' earlier heads; and whether it could
        be chosen at all: False where it was masked or its head does not matter."""
        rows, relevant = self._along(actions)
        return rows.probs, rows.mask & relevant.unsqueeze(-1)

    def _along(self, actions: Tensor) -> tuple[MaskedCategorical, Tensor]:
        """The distribution of each head (..., head, choice) along these actions, and relevance (..., head)."""
        logits, legal, relevant = self._rows(actions, self.constants.every_head)
        return MaskedCategorical(logits, legal, floor=self.floor), relevant

    def _choose(self, noise: Tensor | None) -> Tensor:
        """Level by level, since a row of masks depends on earlier choices; the heads of a level together."""
        shape = (*self.logits.shape[:-1], self.constants.layout.head_count)
        actions = torch.zeros(shape, dtype=torch.int64, device=self.logits.device)
        for group in self.constants.levels:
            # Unnormalised is enough to choose with: log-softmax only shifts a row.
            scores, legal, _ = self._rows(actions, group)
            if self.floor:
                scores = mix_with_uniform(torch.log_softmax(scores, dim=-1), legal, self.floor)
            if noise is not None:
                scores = scores + (noise if self._single else noise.index_select(-2, group.heads))
            best, picked = scores.max(-1)
            require_rows(torch.isfinite(best), "row {} has no legal choice, or its logits are not finite")
            if self._single:
                return picked
            actions.index_copy_(-1, group.heads, picked)
        return actions

    @property
    def _single(self) -> bool:
        return self.constants.layout.head_count == 1

    def _rows(self, actions: Tensor, group: HeadGroup) -> tuple[Tensor, Tensor, Tensor]:
        """Masked logits and legality (..., head, choice) of the selected rows, and relevance (..., head)."""
        constants = self.constants
        if self._single:  # nothing to select: the flat vector is the row
            logits, legal = self.logits.unsqueeze(-2).float(), self.mask.unsqueeze(-2)
            relevant = torch.ones_like(actions, dtype=torch.bool)
        else:
            index = group.row_index(actions)
            flat_index = index.flatten(-2)
            logits = self.logits.gather(-1, flat_index).view(index.shape).float()
            legal = self.mask.gather(-1, flat_index).view(index.shape) & group.in_head
            relevant = constants.relevance[actions[..., 0]].index_select(-1, group.heads)
            legal = torch.where(relevant.unsqueeze(-1), legal, constants.canonical)
        return torch.where(legal, logits, -math.inf), legal, relevant
