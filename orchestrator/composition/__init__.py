"""Composes the config with Hydra from files and overrides, and explains overrides that do not fit."""
