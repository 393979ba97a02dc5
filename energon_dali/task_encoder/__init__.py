"""The hooks of a task, from a sample to a batch, and the decoder of its media."""

from __future__ import annotations

from energon_dali.errors import IgnoreSample, SkipSample
from energon_dali.samples.batching import batch_list, batch_pad_stack, batch_stack, generic_batch
from energon_dali.task_encoder.augment import AugmentTaskEncoder
from energon_dali.task_encoder.context import current_batch_index, current_sample_index, sample_context
from energon_dali.task_encoder.cooking import Cooker, basic_sample_keys, choose_cooker, cooker
from energon_dali.task_encoder.default import DefaultTaskEncoder
from energon_dali.task_encoder.encoder import TaskEncoder, function_name, hook_names, overridden
from energon_dali.task_encoder.packed_sequences import PackedSequences, pack_sequences
from energon_dali.task_encoder.packing import PackingBuffer, PackSelection, SequencePacker
from energon_dali.task_encoder.stateless import failure_tolerance, is_stateless, stateless
from energon_dali.task_encoder.token_counts import count_tokens

__all__ = [
    "AugmentTaskEncoder",
    "Cooker",
    "DefaultTaskEncoder",
    "IgnoreSample",
    "PackSelection",
    "PackedSequences",
    "PackingBuffer",
    "SequencePacker",
    "SkipSample",
    "TaskEncoder",
    "basic_sample_keys",
    "batch_list",
    "batch_pad_stack",
    "batch_stack",
    "choose_cooker",
    "cooker",
    "count_tokens",
    "current_batch_index",
    "current_sample_index",
    "failure_tolerance",
    "function_name",
    "generic_batch",
    "hook_names",
    "is_stateless",
    "overridden",
    "pack_sequences",
    "sample_context",
    "stateless",
]
