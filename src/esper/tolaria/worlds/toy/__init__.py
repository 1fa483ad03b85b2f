"""The toy: growth without training, with closed-form learning curves, so that the best plan can be computed."""
