"""Ranks that need the same batches, such as tensor-parallel ones: who they are, and which of them read for others."""

from __future__ import annotations

import contextlib
import importlib
import os
import secrets
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from energon_dali.errors import ConfigError, StateError
from energon_dali.samples.delivery import Delivery, Place

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

HOST_VARIABLE = "ENERGON_DALI_HOST"
_ELSEWHERE = "10.255.255.255"
"""An address on another network."""
_BACKLOG = 256
"""Connections that may wait until the reader accepts them: those of all loaders of all ranks of a node."""


@dataclass(frozen=True, slots=True)
class Member:
    """A rank of a group that shares its batches."""

    rank: int
    """Number of the rank in the whole job."""
    node: str
    """Ranks with the same text can map each other's memory: same kernel, same network namespace, same user."""
    address: str
    """Name of its Unix socket in the abstract namespace, which disappears with the process. A secret of the job."""
    network: tuple[str, int] | None = None
    """Host and port where ranks of other nodes connect; None if each node reads for itself."""


class ShareGroup:
    """The ranks that need the same batches as this one. One on each node reads them, and the others there follow it.

    With `network` in the members, the first rank of all reads, and the first one of each other node is a relay: it
    takes the batches over the network and passes them to the ranks of its node.

    `WorkerConfig.from_mesh` and `WorkerConfig.from_groups` make it. It belongs to this process and is not copied to
    workers.

    Args:
        own: This rank.
        members: All ranks of the group, this one included, in the same order on all of them.
        groups: The process groups over which the members found each other.
        servers: The sockets at the address and at the network address of this rank. Those without a use are closed.
    """

    def __init__(
        self, own: Member, members: Sequence[Member], groups: Sequence[ProcessGroup], servers: Sequence[socket.socket]
    ) -> None:
        self.own = own
        self.members = tuple(members)
        self._groups = tuple(groups)
        nodes: dict[str, list[Member]] = {}
        for member in members:
            nodes.setdefault(member.node, []).append(member)
        first, *others = nodes[own.node]
        relays = [here[0] for here in nodes.values() if here[0] != members[0]] if own.network else []
        self.reader = members[0] if own in relays else first
        """The rank from which this one takes its batches; itself if it reads."""
        self.followers: tuple[Member, ...] = ()
        """The ranks to which this one gives batches."""
        if own == first:
            self.followers = (*others, *(relays if own == members[0] else ()))
        self._loaders = 0
        self.servers = tuple(servers)
        """Where followers connect; empty if there are none, and in a forked child."""
        if not self.followers:
            self.close()
        elif own != members[0] or not relays:
            for server in self.servers[1:]:
                server.close()
            self.servers = self.servers[:1]
        if self.servers:
            from energon_dali.shards.storage.forks import drop_in_child

            drop_in_child(self)

    @property
    def is_follower(self) -> bool:
        """Whether this rank opens no dataset, because another one reads for it."""
        return self.own != self.reader

    @property
    def is_shared(self) -> bool:
        """Whether this rank gives batches to others, or takes them from one."""
        return self.is_follower or bool(self.followers)

    def next_number(self) -> int:
        """Returns a number for a new loader: all ranks make their loaders in the same order."""
        number = self._loaders
        self._loaders += 1
        return number

    def from_reader(self, value: Any) -> Any:
        """Returns the value that the first rank of the group passes. A collective call over the group.

        Args:
            value: Anything that can be pickled; that of other ranks is ignored.
        """
        return gather((self.own.rank, value), self._groups)[0][1]

    def after_fork(self) -> None:
        """Closes the sockets in a forked child; otherwise followers would not notice that the reader has ended."""
        self.close()

    def close(self) -> None:
        """Closes the sockets; no follower can connect any more."""
        servers, self.servers = self.servers, ()
        for server in servers:
            server.close()

    def __repr__(self) -> str:
        does = f"follows rank {self.reader.rank}" if self.is_follower else "reads"
        if self.followers:
            does += f" and gives to ranks {[one.rank for one in self.followers]}"
        return f"<ShareGroup of ranks {[one.rank for one in self.members]}: rank {self.own.rank} {does}>"


def check_sharing(share_group: object, delivery: object) -> None:
    """Checks the options of WorkerConfig that say with whom a rank shares its batches, and what it gets of them.

    Raises:
        ConfigError: One of them is neither None nor what `WorkerConfig.from_mesh` makes.
    """
    kinds: tuple[tuple[str, object, type], ...] = (
        ("share_group", share_group, ShareGroup),
        ("delivery", delivery, Delivery),
    )
    for name, value, kind in kinds:
        if value is not None and not isinstance(value, kind):
            raise ConfigError(
                f"{name}={value!r} is invalid: it must be a {kind.__name__}, or None. WorkerConfig.from_mesh(...) and "
                "WorkerConfig.from_groups(...) make a configuration that has one."
            )


def meet(groups: Sequence[ProcessGroup], *, across_nodes: bool = False) -> ShareGroup | None:
    """Returns the group of ranks that can be reached over these process groups in turn. A collective call.

    Args:
        groups: The groups of this rank, such as its tensor-, context- and pipeline-parallel group.
        across_nodes: Whether one rank reads for all nodes; otherwise one on each node does.

    Returns:
        The group; None if this rank shares its batches with no other rank.
    """
    import torch.distributed as dist

    several = [group for group in groups if dist.get_world_size(group) > 1]
    if not several:
        return None
    address = f"energon-dali-{secrets.token_hex(16)}"
    servers = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)]
    try:
        servers[0].bind(f"\0{address}")
        network = None
        if across_nodes:
            servers.append(socket.create_server(("", 0), backlog=_BACKLOG))
            network = _own_host(), int(servers[1].getsockname()[1])
        servers[0].listen(_BACKLOG)
        for server in servers:
            server.setblocking(False)
        own = Member(dist.get_rank(), _node(), address, network)
        return ShareGroup(own, gather(own, several), several, servers)
    except BaseException:
        for server in servers:
            server.close()
        raise


def _own_host() -> str:
    """Returns the address under which other nodes of the job reach this one.

    It is that of the interface which leads to MASTER_ADDR, or on the node of that address to another network.
    """
    given = os.environ.get(HOST_VARIABLE)
    if given:
        return given
    for other in (os.environ.get("MASTER_ADDR") or socket.gethostname(), _ELSEWHERE):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
            probe.connect((other, 9))  # nothing is sent
            found = str(probe.getsockname()[0])
            if not found.startswith("127."):
                return found
    return socket.gethostname()


def gather(value: Any, groups: Iterable[ProcessGroup]) -> list[Any]:
    """Returns the values of all ranks that can be reached over process groups, in the order of the groups' ranks.

    A collective call over each group in turn: what a rank has gathered over one group is gathered over the next.
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
        data: Names of the dimensions over which the data is divided, the slowest-varying first.
        shared: Names of the dimensions whose ranks need the same batches. "pp" and "cp" determine where this rank is
            in a pipeline and in a context-parallel group.

    Raises:
        ConfigError: A name is unknown or given twice, or a dimension with more than one rank is in neither list.
    """
    data, shared = _names(data), _names(shared)
    known = tuple(mesh.mesh_dim_names or ())
    given = (*data, *shared)
    sizes = {name: mesh.size(number) for number, name in enumerate(known)}
    unknown = [name for name in given if name not in known]
    if unknown or len(set(given)) < len(given):
        raise ConfigError(
            f"data={data} and shared={shared} do not fit a mesh with the dimensions {known}: each name must be one of "
            "these and be given only once."
        )
    left = [name for name in known if name not in given and sizes[name] > 1]
    if left:
        raise ConfigError(
            f"The dimensions {left} of the mesh are neither in data={data} nor in shared={shared}. Ranks along a "
            "dimension read different samples (data) or need the same ones (shared): add each of them to one."
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
    """Returns where this process is, from process groups such as those of Megatron-Core.

    Args:
        data: The data-parallel group; None is the whole world.
        shared: Groups of ranks that need the same batches, by name. "pp" and "cp" determine where this rank is in a
            pipeline and in a context-parallel group. None stands for a group of one.

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
        ConfigError: The source is none of these, or Megatron-Core is not installed.
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
