"""Watching runs: a page, a terminal view or a picture of what is on disk. Nothing here can touch a run."""
