"""Tools for tracking that one has already. One module for each, the only one that imports it."""
