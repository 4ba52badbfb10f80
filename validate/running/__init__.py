"""Real runs: plans of training strategies carried out by processes, and held against their simulation.

Our own executor walks a plan rank by rank, over point-to-point messages of ``torch.distributed`` (gloo, one tag for
each delivery): whatever the strategies plan, ``torch.distributed.pipelining`` or not. All ranks run on one machine.
"""
