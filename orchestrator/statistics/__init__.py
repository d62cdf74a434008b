"""Points, intervals, tests and extrapolations. Pure: arrays in, values out."""
