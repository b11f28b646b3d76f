"""Photos: from files to decoded images, augmented views and batches."""
