"""What crosses a process border, and how: starting processes, their signals, messages, serialization, shared memory."""
