"""Builds the stages of a task encoder over a dataset, in Energon's order, with the worker border at its decoder."""

from __future__ import annotations

import inspect
from typing import Any

from energon_dali.assembly.options import AnyEncoder, DatasetOptions
from energon_dali.datasets.base import SavableDataset
from energon_dali.datasets.grouping.batch import BatchCountDataset, BatchDataset
from energon_dali.datasets.grouping.global_batch import GlobalBatchDataset
from energon_dali.datasets.grouping.group_batch import GroupBatchDataset
from energon_dali.datasets.grouping.packing import PackingDataset
from energon_dali.datasets.grouping.planned_packs import PlannedPackDataset
from energon_dali.datasets.mixing.measured_blend import MeasuredBlendDataset
from energon_dali.datasets.native_source import NativeSourceDataset
from energon_dali.datasets.worker_border import DecodeDataset, WorkerBorder
from energon_dali.datasets.wrappers.epochize import EpochizeDataset, LimitDataset
from energon_dali.datasets.wrappers.map import MapDataset
from energon_dali.datasets.wrappers.worker_decode import WorkerDecodeDataset
from energon_dali.decode import Decoder
from energon_dali.errors import ConfigError
from energon_dali.task_encoder.encoder import batch_function, hook_names, overridden
from energon_dali.task_encoder.planned_packs import PlannedPacks
from energon_dali.task_encoder.stateless import failure_tolerance, is_stateless

LARGEST_BLOCK = 64
"""Most samples per block: enough to keep every decode thread busy, few enough to arrive early."""

SMALLEST_BLOCK = 16
"""Fewest samples per block for small batches: below it, a run of a DALI pipeline costs more than its decoding."""


def block_size(batch_size: int | None) -> int:
    """Returns the number of samples that travel and are decoded together, 16 to 64: whole batches, or equal parts."""
    size = batch_size or SMALLEST_BLOCK * 2
    if size > LARGEST_BLOCK:
        return -(-size // -(-size // LARGEST_BLOCK))
    return size * -(-SMALLEST_BLOCK // size)


def build_stages(dataset: SavableDataset[Any], options: DatasetOptions) -> SavableDataset[Any]:
    """Returns the whole tree: the overridden hooks of the task encoder as stages over a dataset of loaded samples.

    Args:
        dataset: Yields samples, whose media are handles if the encoder's decoder runs in the rank, otherwise decoded.
        options: Options of the call.

    Raises:
        ConfigError: The overridden hooks exclude each other, or do not fit the options.
    """
    encoder = options.encoder
    tree = batch_stages(encode_stages(dataset, options), options)
    tree = BatchCountDataset(tree)
    if rank_decoder(encoder) is None and not isinstance(dataset, NativeSourceDataset):
        tree = WorkerBorder(tree, block_size=1)
    if options.virtual_epoch_length > 0:
        tree = EpochizeDataset.of_steps(tree, options.virtual_epoch_length)
    if options.limit is not None:
        tree = LimitDataset.of_steps(tree, options.limit)
    return tree


def encode_stages(dataset: SavableDataset[Any], options: DatasetOptions) -> SavableDataset[Any]:
    """Returns the stages from loaded samples to encoded ones, with the worker border of a decoder in the rank.

    Args:
        dataset: Yields samples.
        options: Options of the call.

    Raises:
        ConfigError: The overridden hooks exclude each other, or do not fit the options.
    """
    encoder = options.encoder
    _check_hooks(encoder, options)
    native = isinstance(dataset, NativeSourceDataset)
    if native and overridden(encoder, "preencode_sample"):
        raise ConfigError(
            f"{type(encoder).__name__} overrides preencode_sample, which sees media before they are decoded, and "
            'feed="native" yields them decoded. Use feed="block", or encode_sample alone.'
        )
    decoder = None if native else rank_decoder(encoder)
    late = _late_decoder(encoder)
    tree = dataset
    if overridden(encoder, "preencode_sample"):
        # It may run in a worker, ahead of the batches; its current_batch_index must not depend on that.
        tree = _map(tree, encoder, "preencode_sample", samples_per_batch=options.batch_size or 1)
    # Handles are measured, so that the blend does not depend on what can be decoded, nor on the decoder.
    measures_handles = decoder is not None or (late is not None and _is_split(encoder))
    if measures_handles:
        tree = _measure(tree, encoder, options)
    packs_handles = _packs_handles(options)
    if decoder is not None:
        if decoder.finishes_in_worker:
            tree = WorkerDecodeDataset(tree, decoder, decodes=not packs_handles)
        tree = WorkerBorder(tree, None if packs_handles else decoder, block_size=block_size(options.batch_size))
    elif late is not None:
        tree = tree if packs_handles else DecodeDataset(tree, late)
    if overridden(encoder, "encode_sample"):
        tree = _map(tree, encoder, "encode_sample", samples_per_batch=_samples_per_batch(encoder, options))
    return tree if measures_handles else _measure(tree, encoder, options)


def batch_stages(dataset: SavableDataset[Any], options: DatasetOptions) -> SavableDataset[Any]:
    """Returns the stages from encoded samples to encoded batches.

    Args:
        dataset: What `encode_stages` returned, or a dataset around it.
        options: Options of the call.

    Raises:
        ConfigError: The overridden hooks do not fit the options.
    """
    encoder = options.encoder
    _check_hooks(encoder, options)
    feeds_decoded = getattr(encoder.decoder, "feed", "block") == "native"
    decoder = None if feeds_decoded else rank_decoder(encoder)
    pack_decoder = (decoder or _late_decoder(encoder)) if _packs_handles(options) else None
    tree = _pack(dataset, encoder, options, pack_decoder)
    tree, batched = _batch(tree, encoder, options)
    return _map(tree, encoder, "encode_batch") if batched and overridden(encoder, "encode_batch") else tree


def _is_split(encoder: AnyEncoder) -> bool:
    """Returns whether hooks run before media are decoded, and others after."""
    return overridden(encoder, "preencode_sample") or (
        overridden(encoder, "postencode_sample") and not overridden(encoder, "encode_sample")
    )


def _packs_handles(options: DatasetOptions) -> bool:
    """Returns whether the packing buffer holds encoded media, of which the packing stage decodes those it chooses."""
    return _is_split(options.encoder) and options.packing_buffer_size is not None


def rank_decoder(encoder: AnyEncoder) -> Decoder | None:
    """Returns the encoder's decoder if it runs in the rank's process; None if it runs in the workers."""
    decoder = encoder.decoder
    return decoder if decoder is not None and decoder.placement == "rank" else None


def _late_decoder(encoder: AnyEncoder) -> Decoder | None:
    """Returns the encoder's decoder if workers leave media encoded until the hooks before decoding ran."""
    decoder = encoder.decoder
    return decoder if decoder is not None and decoder.decodes_late else None


def _check_hooks(encoder: AnyEncoder, options: DatasetOptions) -> None:
    name = type(encoder).__name__
    if overridden(encoder, "preencode_sample") and overridden(encoder, "encode_sample"):
        raise ConfigError(
            f"{name} overrides both preencode_sample and encode_sample, which are two forms of one step. Keep "
            "encode_sample alone, or split it into preencode_sample (before decoding, in the workers) and "
            "postencode_sample (on tensors)."
        )
    # As in Energon, packing hooks are ignored without packing_buffer_size, so that an encoder can train unpacked too.
    if options.packing_buffer_size is not None and not (
        overridden(encoder, "select_samples_to_pack") and overridden(encoder, "pack_selected_samples")
    ):
        raise ConfigError(
            f"packing_buffer_size={options.packing_buffer_size} asks for packing, but {name} does not override both "
            "select_samples_to_pack and pack_selected_samples. Override both, or leave packing_buffer_size out."
        )
    if options.packing_first_buffer_size is not None and options.packing_buffer_size is None:
        raise ConfigError(
            f"packing_first_buffer_size={options.packing_first_buffer_size} was given without packing_buffer_size, "
            "which turns packing on. Give both, or neither."
        )


def _map(
    tree: SavableDataset[Any],
    encoder: AnyEncoder,
    hook: str,
    *,
    samples_per_batch: int | None = None,
) -> SavableDataset[Any]:
    function = getattr(encoder, hook)
    return MapDataset(
        tree,
        function,
        stateless_map_fn=is_stateless(function),
        failure_tolerance=_tolerance(encoder, hook),
        map_fn_config=_hook_config(encoder, hook),
        stage=hook,
        samples_per_batch=samples_per_batch,
    )


def _samples_per_batch(encoder: AnyEncoder, options: DatasetOptions) -> int | None:
    """Returns how many samples make a batch where they wait for it; None where a batch takes them as it needs them.

    A sample that waits in a packing buffer, in a group, or for a batch hook that makes several batches of one list, is
    made again after a restore, for a later batch. What its hook reads as current_batch_index must not depend on that.
    """
    waits = options.packing_buffer_size is not None or overridden(encoder, "batch_group_criterion")
    waits = waits or inspect.isgeneratorfunction(encoder.batch)
    return options.batch_size or 1 if waits else None


def _measure(tree: SavableDataset[Any], encoder: AnyEncoder, options: DatasetOptions) -> SavableDataset[Any]:
    """Returns the dataset, with encoded samples measured if the weights of a blend are not in samples."""
    if options.blend_by is None or options.global_batch_size is not None:  # then the plan takes the measures
        return tree
    if rank_decoder(encoder) is not None and overridden(encoder, "encode_sample"):
        raise ConfigError(
            f"blend_by={options.blend_by!r} measures encoded samples where the blend is drawn, in the workers, but "
            f"{type(encoder).__name__}.encode_sample runs after the decoder, in the rank. Split it into "
            "preencode_sample (tokenise, measure: in the workers) and postencode_sample (on decoded media)."
        )
    return MeasuredBlendDataset(tree, options.blend_by)


def _tolerance(encoder: AnyEncoder, hook: str) -> int:
    return failure_tolerance(getattr(encoder, hook), encoder.__default_failure_tolerance__)


def _hook_config(encoder: AnyEncoder, *hooks: str) -> dict[str, Any]:
    return {"hooks": hook_names(encoder, *hooks)}


def _pack(
    tree: SavableDataset[Any], encoder: AnyEncoder, options: DatasetOptions, decoder: Decoder | None
) -> SavableDataset[Any]:
    post = overridden(encoder, "postencode_sample")
    if options.packing_buffer_size is None:
        if post:
            tree = _map(tree, encoder, "postencode_sample", samples_per_batch=_samples_per_batch(encoder, options))
        return tree if options.packs is None else _pack_as_planned(tree, encoder, options.packs)
    return PackingDataset(
        tree,
        options.packing_buffer_size,
        encoder.select_samples_to_pack,
        encoder.pack_selected_samples,
        final_packer_stateless=is_stateless(encoder.pack_selected_samples),
        sample_encoder=encoder.postencode_sample if post else None,
        sample_encoder_stateless=is_stateless(encoder.postencode_sample) if post else True,
        decoder=decoder,
        first=options.packing_first_buffer_size,
        packer_config=_hook_config(encoder, "select_samples_to_pack", "pack_selected_samples"),
        pre_packer_failure_tolerance=_tolerance(encoder, "select_samples_to_pack"),
        final_packer_failure_tolerance=_tolerance(encoder, "pack_selected_samples"),
        sample_encoder_failure_tolerance=_tolerance(encoder, "postencode_sample"),
    )


def _pack_as_planned(tree: SavableDataset[Any], encoder: AnyEncoder, packs: PlannedPacks) -> SavableDataset[Any]:
    return PlannedPackDataset(
        tree,
        encoder.pack_selected_samples,
        real_length=packs.measure_of_encoded,
        cut=encoder.cut_sample if overridden(encoder, "cut_sample") else None,
        packer_stateless=is_stateless(encoder.pack_selected_samples),
        packer_config=_hook_config(encoder, "pack_selected_samples"),
        failure_tolerance=_tolerance(encoder, "pack_selected_samples"),
    )


def _batch(tree: SavableDataset[Any], encoder: AnyEncoder, options: DatasetOptions) -> tuple[SavableDataset[Any], bool]:
    """Returns (the tree, whether it yields batches)."""
    batcher = batch_function(encoder)
    how: dict[str, Any] = {
        "batcher_stateless": is_stateless(encoder.batch),
        "batcher_config": _hook_config(encoder, "batch"),
        "failure_tolerance": _tolerance(encoder, "batch"),
    }
    if overridden(encoder, "batch_group_criterion"):
        criterion, drop_last = encoder.batch_group_criterion, options.batch_drop_last
        return GroupBatchDataset(tree, options.batch_size, criterion, batcher, drop_last=drop_last, **how), True
    if options.batch_size is None:
        return tree, False
    if options.global_batch_size is not None:
        on_missing = options.on_missing if options.training else "shrink"
        return GlobalBatchDataset(tree, batcher, on_missing=on_missing, **how), True
    return BatchDataset(tree, options.batch_size, batcher, drop_last=options.batch_drop_last, **how), True
