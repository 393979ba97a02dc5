"""Ranks that need the same batches, such as tensor-parallel ones: who they are, and who of them reads for others."""

from __future__ import annotations

import importlib
import os
import secrets
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from energon_dali.errors import ConfigError, StateError
from energon_dali.samples.delivery import Place

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

_BACKLOG = 256
"""Connections that may wait until the reader takes them: those of all loaders of all ranks of a node."""


@dataclass(frozen=True, slots=True)
class Member:
    """A rank of a group that shares its batches."""

    rank: int
    """Number of the rank in the whole job."""
    node: str
    """Ranks with the same text reach each other's memory: same kernel, same network namespace, same user."""
    address: str
    """Name of its Unix socket in the abstract namespace, which the kernel drops with the process."""


class ShareGroup:
    """The ranks that need the same batches as this one. One on each node reads them, and the others there follow it.

    `WorkerConfig.from_mesh` and `WorkerConfig.from_groups` make it. It belongs to this process, and is not copied to
    workers.

    Args:
        own: This rank.
        members: All ranks of the group, this one included, in the same order on all of them.
        groups: The process groups over which the members found each other.
        server: The socket at the address of this rank; closed if this rank does not read for others.
    """

    def __init__(
        self, own: Member, members: Sequence[Member], groups: Sequence[ProcessGroup], server: socket.socket
    ) -> None:
        self.own = own
        self.members = tuple(members)
        self._groups = tuple(groups)
        here = [member for member in members if member.node == own.node]
        self.reader = here[0]
        """The rank that reads for this node; perhaps this one."""
        self.followers = tuple(here[1:])
        """The ranks of this node that take what the reader has read."""
        self._loaders = 0
        self.server: socket.socket | None = server
        """Where followers connect; None in a follower, and in a forked child."""
        if self.is_follower or not self.followers:
            self.close()
        else:
            from energon_dali.shards.storage.forks import drop_in_child

            drop_in_child(self)

    @property
    def is_follower(self) -> bool:
        """Whether another rank of this node reads for this one."""
        return self.own != self.reader

    @property
    def is_reader(self) -> bool:
        """Whether this rank reads for others."""
        return not self.is_follower and bool(self.followers)

    @property
    def is_first(self) -> bool:
        """Whether this rank is the first of the group. Of each group of ranks that share, one is."""
        return self.own == self.members[0]

    def next_number(self) -> int:
        """Returns a number for a new loader: all ranks make their loaders in the same order."""
        number = self._loaders
        self._loaders += 1
        return number

    def from_reader(self, value: Any) -> Any:
        """Returns the value that the first rank of the group gives. A collective call over the group.

        Args:
            value: Anything that can be pickled; that of other ranks is ignored.
        """
        return gather((self.own.rank, value), self._groups)[0][1]

    def after_fork(self) -> None:
        """Closes the socket in a forked child: followers would not notice that the reader has ended."""
        self.close()

    def close(self) -> None:
        """Closes the socket; nobody can connect any more."""
        server, self.server = self.server, None
        if server is not None:
            server.close()

    def __repr__(self) -> str:
        others = f"reads for ranks {[one.rank for one in self.followers]}" if self.is_reader else "reads alone"
        if self.is_follower:
            others = f"follows rank {self.reader.rank}"
        return f"<ShareGroup of ranks {[one.rank for one in self.members]}: rank {self.own.rank} {others}>"


def meet(groups: Sequence[ProcessGroup]) -> ShareGroup | None:
    """Returns the group of ranks that can be reached over process groups, one after the other. A collective call.

    Args:
        groups: Such as the tensor-, context- and pipeline-parallel group of this rank.

    Returns:
        The group; None if this rank shares its batches with no other.
    """
    import torch.distributed as dist

    several = [group for group in groups if dist.get_world_size(group) > 1]
    if not several:
        return None
    address = f"energon-dali-{secrets.token_hex(16)}"
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        server.bind(f"\0{address}")
        server.listen(_BACKLOG)
        server.setblocking(False)
        own = Member(dist.get_rank(), _node(), address)
        members = gather(own, several)
        return ShareGroup(own, members, several, server)
    except BaseException:
        server.close()
        raise


def gather(value: Any, groups: Iterable[ProcessGroup]) -> list[Any]:
    """Returns the values of all ranks that can be reached over process groups, in the order of the groups' ranks.

    A collective call over each group in turn: what a rank has gathered over one is gathered over the next.
    """
    import torch.distributed as dist

    values = [value]
    for group in groups:
        lists: list[Any] = [None] * dist.get_world_size(group)
        dist.all_gather_object(lists, values, group=group)
        values = [one for gathered in lists for one in gathered]
    return values


def _node() -> str:
    """Returns a text that is the same in all processes that can share memory with this one."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}-{os.stat('/proc/self/ns/net').st_ino}-{os.getuid()}"


@dataclass(frozen=True, slots=True)
class Axes:
    """Where this process is: its data-parallel rank and group, and the groups of ranks that need the same batches."""

    rank: int
    world_size: int
    data_parallel_group: ProcessGroup | None
    shared: tuple[ProcessGroup, ...]
    place: Place


def axes_of_mesh(mesh: DeviceMesh, data: Sequence[str] | str, shared: Sequence[str] | str) -> Axes:
    """Returns where this process is in a mesh. A collective call if the data-parallel ranks have several dimensions.

    Args:
        mesh: A DeviceMesh with names.
        data: Names of the dimensions over which the data is divided, the slowest first.
        shared: Names of the dimensions whose ranks need the same batches; "pp" and "cp" among them say where this rank
            is in a pipeline and in a context-parallel group.

    Raises:
        ConfigError: A name is unknown or given twice, or a dimension is in neither list.
    """
    data, shared = _names(data), _names(shared)
    known = tuple(mesh.mesh_dim_names or ())
    given = (*data, *shared)
    sizes = {name: mesh.size(number) for number, name in enumerate(known)}
    unknown = [name for name in given if name not in known]
    if unknown or len(set(given)) < len(given):
        raise ConfigError(
            f"data={data} and shared={shared} do not fit a mesh with the dimensions {known}: each name must be one of "
            "these, and be given once."
        )
    left = [name for name in known if name not in given and sizes[name] > 1]
    if left:
        raise ConfigError(
            f"The dimensions {left} of the mesh are neither in data={data} nor in shared={shared}. Ranks along a "
            "dimension read different samples (data) or need the same ones (shared): say which."
        )
    rank = 0
    for name in data:
        rank = rank * sizes[name] + mesh.get_local_rank(name)
    several = [name for name in data if sizes[name] > 1]
    return Axes(
        rank,
        _product(sizes[name] for name in data),
        _group_of(mesh, several),
        tuple(mesh.get_group(name) for name in shared if sizes[name] > 1),
        Place(*_place_in(mesh, sizes, "pp"), *_place_in(mesh, sizes, "cp")),
    )


def _place_in(mesh: DeviceMesh, sizes: Mapping[str, int], name: str) -> tuple[int, int]:
    return (mesh.get_local_rank(name), sizes[name]) if name in sizes else (0, 1)


def _names(given: Sequence[str] | str) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _product(sizes: Iterable[int]) -> int:
    result = 1
    for size in sizes:
        result *= size
    return result


def _group_of(mesh: DeviceMesh, names: list[str]) -> ProcessGroup | None:
    """Returns the group of this process along some dimensions; None where it would have one member."""
    if not names:
        return None
    if len(names) == 1:
        return mesh.get_group(names[0])
    return mesh[tuple(names)]._flatten().get_group()


def axes_of_groups(data: ProcessGroup | None, shared: Mapping[str, ProcessGroup | None]) -> Axes:
    """Returns where this process is, from process groups as Megatron-Core keeps them.

    Args:
        data: The data-parallel group; None is the whole world.
        shared: Groups of ranks that need the same batches, by name; "pp" and "cp" say where this rank is in a pipeline
            and in a context-parallel group. None stands for a group of one.

    Raises:
        StateError: torch.distributed is not initialised.
    """
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        raise StateError(
            "Ranks that share their batches find each other over process groups, and torch.distributed is not "
            "initialised. Call torch.distributed.init_process_group first."
        )

    def place(name: str) -> tuple[int, int]:
        group = shared.get(name)
        return (0, 1) if group is None else (dist.get_rank(group), dist.get_world_size(group))

    groups = tuple(group for group in shared.values() if group is not None)
    return Axes(dist.get_rank(data), dist.get_world_size(data), data, groups, Place(*place("pp"), *place("cp")))


_MEGATRON_GETTERS = {
    "dp": "get_data_parallel_group",
    "tp": "get_tensor_model_parallel_group",
    "cp": "get_context_parallel_group",
    "pp": "get_pipeline_model_parallel_group",
}
"""Functions of megatron.core.parallel_state; a ProcessGroupCollection has the short names as attributes."""


def groups_of_megatron(source: Any) -> dict[str, ProcessGroup | None]:
    """Returns Megatron-Core's groups of this process by their short names.

    Args:
        source: `megatron.core.parallel_state`, a ProcessGroupCollection, or None, which imports the former.

    Raises:
        ConfigError: It is neither, or Megatron-Core is not installed.
    """
    if source is None:
        try:
            source = importlib.import_module("megatron.core.parallel_state")
        except ImportError as error:
            raise ConfigError(
                f"megatron.core cannot be imported ({error}). Give a ProcessGroupCollection, or use from_groups or "
                "from_mesh."
            ) from error
    if hasattr(source, _MEGATRON_GETTERS["dp"]):
        return {name: getattr(source, getter)() for name, getter in _MEGATRON_GETTERS.items()}
    if hasattr(source, "dp"):
        return {name: getattr(source, name, None) for name in _MEGATRON_GETTERS}
    raise ConfigError(
        f"{source!r} has no groups of Megatron-Core. Give megatron.core.parallel_state or a ProcessGroupCollection."
    )
