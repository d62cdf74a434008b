"""Turns the words of a command line into a configured, checked sweep."""
