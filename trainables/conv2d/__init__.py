"""One convolution and nothing else, timed."""
