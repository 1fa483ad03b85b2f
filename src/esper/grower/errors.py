"""What a training loop is warned of."""


class GrowthWarning(UserWarning):
    """Something is not as it should be; training goes on, and the message says what to do."""
