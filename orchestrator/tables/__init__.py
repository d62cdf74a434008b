"""The tables for people."""
