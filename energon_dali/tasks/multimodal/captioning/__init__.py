"""Captions of images: patches stand before the text, and samples of different sizes are packed into rows."""
