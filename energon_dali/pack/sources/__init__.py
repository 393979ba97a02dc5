"""What can be packed: one module per kind of source."""
