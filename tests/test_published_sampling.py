"""Published sampling beside the simulator's: how rows are read, and what is said of them."""

from dataclasses import replace

from profiles.clusters import load_cluster
from profiles.models import load_model
from sim.sampling import run_sampling
from strategies.hybrid import Hybrid
from strategies.sampling import SamplingScenario, SamplingWorkload


def test_a_hybrid_that_asks_for_patches_late_waits_for_its_links_as_pipefusion_does():
    cluster = load_cluster("a100-nvlink-8")
    slow = replace(cluster, intra_node=replace(cluster.intra_node, bandwidth_bytes_per_s=1e9))
    scenario = SamplingScenario.of(load_model("pixart"), slow, SamplingWorkload(4, 1024, 1024, 5))
    early, late = (
        run_sampling(Hybrid(guidance_degree=2, pipeline_degree=2, receive=receive), scenario)
        for receive in ("before", "after")
    )
    assert late.expected.latency_s > 1.02 * early.expected.latency_s
