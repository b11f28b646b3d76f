"""One reader a file: annotation files to a `LabelTable`."""
