"""From frames to an answer: the cell to use, how sure that is, and the verdicts on claims."""
