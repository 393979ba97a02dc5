"""What all tasks share: the data module, the module that trains, and how a run is put together."""
