"""Log trials to tracking tools. Each tool is imported by one module."""
