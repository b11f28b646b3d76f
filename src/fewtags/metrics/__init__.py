"""Metrics that never count an unknown cell."""
