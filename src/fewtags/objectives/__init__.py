"""Methods, one file a family; independent of each other."""
