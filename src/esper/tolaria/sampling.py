"""Which samples a host sees: endless shuffled minibatches from its own generator."""

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor


def derived_seed(seed: int, purpose: str) -> int:
    """A seed of its own for each purpose, so that no two streams of randomness are one."""
    digest = hashlib.blake2b(f"{purpose}/{seed}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


class ShuffledStream:
    """One permutation of the training set after another, cut into minibatches.

    A permutation that ends inside a minibatch is followed by the next one, so every sample is seen equally often
    whatever the sizes. The numbers are drawn on the CPU: a host sees the same samples on every device.
    """

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(derived_seed(seed, "minibatches"))
        self._samples = range(0)
        self._rest = torch.empty(0, dtype=torch.int64)

    def draw(self, samples: range, steps: int, batch: int) -> Tensor:
        """Indices (step, batch) out of `samples`; when these are others than before, a new permutation begins."""
        if not len(samples):
            raise ValueError("samples is empty: there is nothing to train on")
        if samples != self._samples:
            self._samples, self._rest = samples, self._rest[:0]
        wanted = steps * batch
        parts, held = [self._rest], len(self._rest)
        while held < wanted:
            parts.append(torch.randperm(len(samples), generator=self._generator) + samples.start)
            held += len(samples)
        order = torch.cat(parts)
        self._rest = order[wanted:]
        return order[:wanted].view(steps, batch)

    def state_dict(self) -> dict[str, Tensor]:
        return {
            "generator": self._generator.get_state(),
            "samples": torch.tensor([self._samples.start, self._samples.stop]),
            "rest": self._rest.clone(),
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self._generator.set_state(state["generator"])
        start, stop = state["samples"].tolist()
        self._samples = range(start, stop)
        self._rest = state["rest"].clone()
