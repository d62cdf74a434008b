"""The ledger of a sweep, and the words for what it holds: how attempts ended, and which of their records stand."""
