"""Checks a results directory for damage and contradictions."""
