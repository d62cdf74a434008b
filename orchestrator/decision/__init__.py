"""Turns frames into an answer: the cell to use, how certain that is, and the verdicts on claims."""
