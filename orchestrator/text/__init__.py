"""How numbers, rows and tables are written for people."""
