"""Label tables: the known facts about images, their splits, merging, storage and summaries."""
