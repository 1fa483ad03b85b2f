"""What `TrainingConfig` is made of: ranges, errors, files, presets, and the forms its consumers take."""
