"""Worker processes: what runs in them, and the pool that takes their blocks."""
