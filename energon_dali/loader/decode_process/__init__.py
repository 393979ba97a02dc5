"""The rank's pipeline in a process of its own, next to the trainer, which receives finished batches."""
