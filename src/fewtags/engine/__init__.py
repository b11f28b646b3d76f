"""The loop, checkpoints, evaluation, and the wiring from configuration to parts."""
