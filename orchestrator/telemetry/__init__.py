"""Telemetry of the machines on which trials run, and which timings are invalid because of it. The only user of NVML."""
