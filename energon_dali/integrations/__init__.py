"""Integrations with other trainers and data tools, which iterate a loader of this package and save its position.

Each module imports its library when it is imported. Nothing else of this package imports these modules but `callers`,
which imports no library, and which datasets use where one is loaded.
"""
