"""The request: the composed config as values, and versions of the code and data that it names."""
