"""Back ends: they run trials on nodes. One uses Ray, one this process."""
