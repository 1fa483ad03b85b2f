"""Learning from what was recorded: episodes on disk, implicit Q-learning, and estimates without a host."""
