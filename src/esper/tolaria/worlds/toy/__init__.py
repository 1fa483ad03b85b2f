"""The toy: growth without training, with closed-form learning curves and an exact oracle."""
