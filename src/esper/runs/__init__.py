"""What makes a run of training, a benchmark or a shipped controller out of the parts."""
