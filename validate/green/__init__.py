"""Pipelines on one GPU: plans carried out on disjoint parts of its multiprocessors, held against their simulation.

Each device of a plan is a green context with a stream of its own. The whole iteration is enqueued at once: ops as CUDA
graphs, events as dependencies, messages as a copy and a kernel that waits. It shows concurrent order, dependencies and
contention on real kernels; it says nothing of NCCL. ``--rehearse`` puts threads in the place of the contexts.
"""
