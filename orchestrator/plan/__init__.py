"""What would run, and what need not: the plan, its phases and the search."""
