"""The tables of a sweep: Markdown, LaTeX, CSV, Parquet, and the output on a terminal."""
