"""Turns records into frames with one row per trial, per cell, or per epoch."""
