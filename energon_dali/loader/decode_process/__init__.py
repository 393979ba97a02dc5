"""The rank's part in a process of its own beside the trainer, which receives finished batches."""
