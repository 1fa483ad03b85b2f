"""Tolaria: running hosts. Tasks and their data, training epochs, validation, and the score of the final report."""
