"""Transfer evaluation: probes that measure an encoder on other tasks."""
