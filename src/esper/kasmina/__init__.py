"""Kasmina: the growing model."""
