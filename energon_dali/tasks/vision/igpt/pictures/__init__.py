"""Draws pictures with a model, and shows them."""
