"""The engine: hosts that train side by side on one device, validated under coalitions of seeds."""
