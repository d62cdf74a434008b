"""From records to frames: a row a trial, a row a cell, a row an epoch."""
