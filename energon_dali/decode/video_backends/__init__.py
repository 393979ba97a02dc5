"""What decodes videos: one file per library, one interface, and the choice for each video."""
