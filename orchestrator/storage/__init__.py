"""Files that hold whatever happens: where everything of a sweep lies, how it is written, and who may write it."""
