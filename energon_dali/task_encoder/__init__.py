"""The hooks of a task, from a sample to a batch, and the decoder of its media."""
