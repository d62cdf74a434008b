"""What was asked for: the composed config as values, and the versions of what it names."""
