"""Images decoded by DALI: the graph, what it is fed, the engine that runs it, bad files, and the native reader."""
