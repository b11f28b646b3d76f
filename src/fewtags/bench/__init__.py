"""Protocols of papers as TOML files, and one driver that runs them: data, grid of runs, measures, tables."""
