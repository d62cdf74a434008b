"""The report of a sweep: one HTML page without network, the same as Markdown and LaTeX, pictures, and their data."""
