"""Settings of `train` and `pretrain`: sections, presets, and reading them from TOML and the command line."""
