"""Readers: one module for each annotation format, and `read`, which detects the format."""
