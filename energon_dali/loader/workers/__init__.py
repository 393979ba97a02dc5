"""Worker processes: starting them, talking with them, and what crosses between them and the rank."""
