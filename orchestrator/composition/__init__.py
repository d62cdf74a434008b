"""The config as Hydra composes it, from files and overrides, and what of these does not fit."""
