"""Per-sample state: running averages, heatmaps, rankings."""
