"""The ledger of a sweep, what it records (how attempts ended), and which of its records are valid."""
