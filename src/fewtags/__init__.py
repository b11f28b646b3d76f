"""fewtags: multi-label classifiers from few labels."""
