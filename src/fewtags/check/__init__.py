"""Findings in labels and photos, before training."""
