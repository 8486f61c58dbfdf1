"""What watches jobs while they run: servers that take in what the jobs say of themselves."""
