"""What would run and what can be skipped: the plan, its phases and the search."""
