"""Models of other libraries as backbones of the tasks here."""
