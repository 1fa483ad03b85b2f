"""What a run is configured by: `TrainingConfig`, its ranges, errors, files and presets."""
