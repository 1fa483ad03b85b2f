"""Hosts on many machines: workers are actors of a Ray cluster. Needs the extra `ray`."""
