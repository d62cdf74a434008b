"""The report of a sweep: one HTML page without network, the same as Markdown, plots, and their data."""
