"""What a test runs in a process of its own: measures a dataset on a Ray cluster of two nodes."""

from __future__ import annotations

import sys

import ray
from ray.cluster_utils import Cluster

from energon_dali import measure_datasets
from energon_dali.assembly import measuring
from tests.assembly.measured_encoders import Picky


def main(root: str) -> None:
    measuring.CHUNK = 3
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    cluster.add_node(num_cpus=1)
    try:
        ray.init(cluster.address, log_to_driver=False)
        assert len(ray.nodes()) == 2
        measure_datasets(root, Picky(), again=True, ray_address=cluster.address)
        ray.shutdown()
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
