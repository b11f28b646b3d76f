"""Transfer: what an encoder is worth on other tasks."""
