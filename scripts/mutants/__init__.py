"""The breaks that `scripts/mutate.py` plants: each of a rule, with the tests that must notice."""

from mutants.growing import GROWING
from mutants.learning import LEARNING
from mutants.mutant import Mutant

MUTANTS = (*LEARNING, *GROWING)

__all__ = ["MUTANTS", "Mutant"]
