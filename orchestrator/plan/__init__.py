"""The plan of a sweep: the trials to run, their order and cost, phases and searches that skip trials."""
