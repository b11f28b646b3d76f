"""Networks with class maps before pooling, and their weights."""
