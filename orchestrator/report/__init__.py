"""The report of a sweep: an HTML page, a Markdown document, plots and their data."""
