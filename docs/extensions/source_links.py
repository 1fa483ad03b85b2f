"""Links to the source tree work where the repository is read; built pages stand without it and show their text."""

import re

_TO_SOURCE = re.compile(r"\[(`[^`]+`)\]\(\.\./(?:src|scripts)/[^)]*\)")


def on_page_markdown(markdown: str, **_: object) -> str:
    """Called by MkDocs with every page."""
    return _TO_SOURCE.sub(r"\1", markdown)
