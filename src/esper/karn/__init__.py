"""Karn: showing what runs recorded."""
