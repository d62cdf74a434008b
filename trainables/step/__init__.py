"""One update, in every way that sweeps compare: strategies, exchanges, precision, compilation, CUDA graphs."""
