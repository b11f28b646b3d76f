"""Methods of training: one file per family, independent of each other."""
