"""Worlds: hosts that are stepped together, trained here, in worker processes, or in closed form."""
