"""Captions of images: patches precede the text, and samples of different sizes are packed into rows.

Reading processes load `task_encoder` and `rows`, and neither torch nor lightning.
"""
