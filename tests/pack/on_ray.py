"""What the campaign runs in a process of its own: packs on a Ray cluster of two nodes."""

from __future__ import annotations

import sys
from pathlib import Path

import ray
from ray.cluster_utils import Cluster

from tests.faults.packing import OPTIONS
from tests.pack.images_folder import pack


def main(source: Path, out: Path) -> None:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    cluster.add_node(num_cpus=1)
    try:
        ray.init(cluster.address, log_to_driver=False)
        assert len(ray.nodes()) == 2
        pack(source, out, ray_address=cluster.address, **OPTIONS)
        ray.shutdown()
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
