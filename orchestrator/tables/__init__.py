"""The tables of a sweep: Markdown, CSV, Parquet, and the output on a terminal."""
