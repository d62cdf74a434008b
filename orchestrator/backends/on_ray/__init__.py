"""Trials on Ray. The only place with Ray."""
