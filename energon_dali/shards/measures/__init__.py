"""Measures: integers of each sample that were computed before training, in a mapped file per dataset and encoder."""

from energon_dali.shards.measures.estimated import EstimatedValues
from energon_dali.shards.measures.measure_file import MeasureFile
from energon_dali.shards.measures.writer import MeasureWriter

__all__ = ["EstimatedValues", "MeasureFile", "MeasureWriter"]
