"""The error that a person can mend."""


class EsperError(Exception):
    """Something that was asked for cannot be done. The message names the setting, its value and what was expected.

    Errors that a caller can mend derive from it (`ConfigError`, `RunError`, `ControllerError`, ...), and the `esper`
    command prints them in one line; any other exception is a defect and keeps its traceback.
    """
