"""The report: one HTML file about a run."""
