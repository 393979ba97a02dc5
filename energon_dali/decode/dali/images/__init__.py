"""Images decoded by DALI: the graph, the engine that runs it, recovery from bad files, and DALI's own reader."""
