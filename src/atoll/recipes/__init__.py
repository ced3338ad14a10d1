"""The built-in experiments, one TOML file each."""
