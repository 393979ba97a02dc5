"""Clips of videos decoded by DALI: which files it may see, the graph, and the engine that runs it."""
