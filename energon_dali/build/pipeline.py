"""Builds the tree of datasets for a task encoder: Energon's order of stages, cut where its decoder wants it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from energon_dali.datasets.base import SavableDataset
from energon_dali.datasets.batch_count import BatchCountDataset
from energon_dali.datasets.grouping.batch import BatchDataset
from energon_dali.datasets.grouping.group_batch import GroupBatchDataset
from energon_dali.datasets.grouping.packing import PackingDataset
from energon_dali.datasets.mixing.measured_blend import BlendBy, MeasuredBlendDataset
from energon_dali.datasets.native_source import NativeSourceDataset
from energon_dali.datasets.worker_border import WorkerBorder
from energon_dali.datasets.wrappers.epochize import EpochizeDataset
from energon_dali.datasets.wrappers.limit import LimitDataset
from energon_dali.datasets.wrappers.map import MapDataset
from energon_dali.decode import Decoder
from energon_dali.errors import ConfigError
from energon_dali.task_encoder import TaskEncoder, failure_tolerance, hook_names, is_stateless, overridden

LARGEST_BLOCK = 64
"""Samples per block at most: enough to keep every decode thread busy, few enough to be there soon."""

SMALLEST_BLOCK = 16
"""Samples per block at least, where batches are smaller: below it a pipeline run costs more than it decodes."""


@dataclass(frozen=True)
class Stages:
    """What the user chose of the stages behind the source."""

    batch_size: int | None
    """Samples per batch; None gives single samples."""
    batch_drop_last: bool = False
    """Drop the smaller batch at the end of an epoch."""
    packing_buffer_size: int | None = None
    """Samples in the packing buffer; None does not pack."""
    packing_first_buffer_size: int | None = None
    """Samples in the buffer of the first round, which each round doubles; None waits for a full one."""
    virtual_epoch_length: int = 0
    """Batches per rank after which an epoch ends; 0 leaves it to the data."""
    limit: int | None = None
    """Batches per rank after which validation ends; None takes all."""
    blend_by: BlendBy | None = None
    """Unit in which the weights of a blend hold; None are samples."""


def block_size(batch_size: int | None) -> int:
    """Returns how many samples travel and are decoded together: whole batches or equal parts of one, 16 to 64
    samples.
    """
    size = batch_size or SMALLEST_BLOCK * 2
    if size > LARGEST_BLOCK:
        return -(-size // -(-size // LARGEST_BLOCK))
    return size * -(-SMALLEST_BLOCK // size)


def build_stages(
    source: SavableDataset[Any], encoder: TaskEncoder[Any, Any, Any, Any], stages: Stages
) -> SavableDataset[Any]:
    """Returns the whole tree over a source of loaded samples.

    Args:
        source: Gives samples; its media are handles if the encoder's decoder works in the rank, else decoded.
        encoder: Its overridden hooks become stages.
        stages: Sizes and limits.

    Raises:
        ConfigError: The hooks that are overridden exclude each other, or do not fit the sizes.
    """
    _check_hooks(encoder, stages)
    native = isinstance(source, NativeSourceDataset)
    if native and overridden(encoder, "preencode_sample"):
        raise ConfigError(
            f"{type(encoder).__name__} overrides preencode_sample, which sees media before they are decoded, and "
            f'feed="native" gives them '
            'decoded. Use feed="block", or encode_sample alone.'
        )
    decoder = None if native else rank_decoder(encoder)
    tree = source
    split = overridden(encoder, "preencode_sample") or (
        overridden(encoder, "postencode_sample") and not overridden(encoder, "encode_sample")
    )
    if overridden(encoder, "preencode_sample"):
        # It may run in a worker, ahead of the batches; what it sees must not depend on that.
        tree = _map(tree, encoder, "preencode_sample", samples_per_batch=stages.batch_size or 1)
    pack_decoder: Decoder | None = None
    if decoder is not None:
        tree = _measure(tree, encoder, stages)
        # A packing buffer of a split encoder holds encoded media; what is chosen is decoded there.
        pack_decoder = decoder if split and stages.packing_buffer_size is not None else None
        tree = WorkerBorder(tree, None if pack_decoder else decoder, block_size=block_size(stages.batch_size))
    if overridden(encoder, "encode_sample"):
        tree = _map(tree, encoder, "encode_sample")
    if decoder is None:
        tree = _measure(tree, encoder, stages)
    tree = _pack(tree, encoder, stages, pack_decoder)
    tree, batched = _batch(tree, encoder, stages)
    if batched and overridden(encoder, "encode_batch"):
        tree = _map(tree, encoder, "encode_batch")
    tree = BatchCountDataset(tree)
    if decoder is None and not native:
        tree = WorkerBorder(tree, block_size=1)
    if stages.virtual_epoch_length > 0:
        tree = EpochizeDataset(tree, stages.virtual_epoch_length)
    if stages.limit is not None:
        tree = LimitDataset(tree, stages.limit)
    return tree


def rank_decoder(encoder: TaskEncoder[Any, Any, Any, Any]) -> Decoder | None:
    """Returns the encoder's decoder if media are decoded in the rank's process; None if workers do all."""
    decoder = encoder.decoder
    return decoder if decoder is not None and decoder.placement == "rank" else None


def _check_hooks(encoder: TaskEncoder[Any, Any, Any, Any], stages: Stages) -> None:
    name = type(encoder).__name__
    if overridden(encoder, "preencode_sample") and overridden(encoder, "encode_sample"):
        raise ConfigError(
            f"{name} overrides both preencode_sample and encode_sample, and they are two forms of one step. Keep "
            f"encode_sample alone, or "
            "split it into preencode_sample (before decoding, in the workers) and postencode_sample (on tensors)."
        )
    # Hooks that pack are not used without packing_buffer_size, as in Energon: one encoder trains packed or not.
    if stages.packing_buffer_size is not None and not (
        overridden(encoder, "select_samples_to_pack") and overridden(encoder, "pack_selected_samples")
    ):
        raise ConfigError(
            f"packing_buffer_size={stages.packing_buffer_size} asks for packing, but {name} does not override both "
            "select_samples_to_pack and pack_selected_samples. Override both, or leave packing_buffer_size out."
        )
    if stages.packing_first_buffer_size is not None and stages.packing_buffer_size is None:
        raise ConfigError(
            f"packing_first_buffer_size={stages.packing_first_buffer_size} was given without packing_buffer_size, "
            "which turns packing on. Give both, or neither."
        )


def _map(
    tree: SavableDataset[Any],
    encoder: TaskEncoder[Any, Any, Any, Any],
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


def _measure(
    tree: SavableDataset[Any], encoder: TaskEncoder[Any, Any, Any, Any], stages: Stages
) -> SavableDataset[Any]:
    """Returns the samples as a worker has encoded them, measured where the weights of a blend are not in samples."""
    if stages.blend_by is None:
        return tree
    if rank_decoder(encoder) is not None and overridden(encoder, "encode_sample"):
        raise ConfigError(
            f"blend_by={stages.blend_by!r} measures encoded samples where the blend is drawn, in the workers, and "
            f"{type(encoder).__name__}.encode_sample runs behind the decoder, in the rank. Split it into "
            "preencode_sample (tokenise, measure: in the workers) and postencode_sample (on decoded media)."
        )
    return MeasuredBlendDataset(tree, stages.blend_by)


def _tolerance(encoder: TaskEncoder[Any, Any, Any, Any], hook: str) -> int:
    return failure_tolerance(getattr(encoder, hook), encoder.__default_failure_tolerance__)


def _hook_config(encoder: TaskEncoder[Any, Any, Any, Any], *hooks: str) -> dict[str, Any]:
    return {"hooks": hook_names(encoder, *hooks)}


def _pack(
    tree: SavableDataset[Any], encoder: TaskEncoder[Any, Any, Any, Any], stages: Stages, decoder: Decoder | None
) -> SavableDataset[Any]:
    post = overridden(encoder, "postencode_sample")
    if stages.packing_buffer_size is None:
        return _map(tree, encoder, "postencode_sample") if post else tree
    return PackingDataset(
        tree,
        stages.packing_buffer_size,
        encoder.select_samples_to_pack,
        encoder.pack_selected_samples,
        final_packer_stateless=is_stateless(encoder.pack_selected_samples),
        sample_encoder=encoder.postencode_sample if post else None,
        sample_encoder_stateless=is_stateless(encoder.postencode_sample) if post else True,
        decoder=decoder,
        first=stages.packing_first_buffer_size,
        packer_config=_hook_config(encoder, "select_samples_to_pack", "pack_selected_samples"),
        pre_packer_failure_tolerance=_tolerance(encoder, "select_samples_to_pack"),
        final_packer_failure_tolerance=_tolerance(encoder, "pack_selected_samples"),
        sample_encoder_failure_tolerance=_tolerance(encoder, "postencode_sample"),
    )


def _batch(
    tree: SavableDataset[Any], encoder: TaskEncoder[Any, Any, Any, Any], stages: Stages
) -> tuple[SavableDataset[Any], bool]:
    """Returns (the tree, whether it gives batches)."""
    batcher = encoder.batch
    tolerance = _tolerance(encoder, "batch")
    config = _hook_config(encoder, "batch")
    if overridden(encoder, "batch_group_criterion"):
        return GroupBatchDataset(
            tree,
            stages.batch_size,
            encoder.batch_group_criterion,
            batcher,
            batcher_stateless=is_stateless(batcher),
            batcher_config=config,
            drop_last=stages.batch_drop_last,
            failure_tolerance=tolerance,
        ), True
    if stages.batch_size is None:
        return tree, False
    return BatchDataset(
        tree,
        stages.batch_size,
        batcher,
        batcher_stateless=is_stateless(batcher),
        batcher_config=config,
        drop_last=stages.batch_drop_last,
        failure_tolerance=tolerance,
    ), True
