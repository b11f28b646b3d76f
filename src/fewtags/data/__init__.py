"""From files to label tables to batches."""
