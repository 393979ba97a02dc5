"""Integrations with other trainers and data tools, which iterate a loader of this package and save its position.

Each module imports its library when it is imported, and nothing else of this package imports these modules.
"""
