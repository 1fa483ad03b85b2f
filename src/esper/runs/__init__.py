"""What makes a run of training, a shipped controller or a judgement from recorded episodes out of the parts."""
