"""Annotation budgets: simulated annotators, costs, purchases, learning curves and plans."""
