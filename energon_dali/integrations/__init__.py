"""Trainers and data tools of others: what lets them iterate a loader of this package and keep its position.

Each module imports its library when it is imported, and nothing else of this package imports these modules.
"""
