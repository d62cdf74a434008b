"""Points, intervals, tests and laws. Pure: arrays in, values out."""
