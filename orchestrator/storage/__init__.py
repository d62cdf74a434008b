"""Where a sweep's files are, how they are written durably, and who may write them."""
