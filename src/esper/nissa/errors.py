"""What can be wrong with a run before any work is done."""


class RunError(RuntimeError):
    """A run that cannot be begun, resumed or read; the message says which and what to do."""
