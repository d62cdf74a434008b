"""What a machine says of itself while trials run, and which timings that spoils. The only place with NVML."""
