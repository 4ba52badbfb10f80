"""Real runs: plans carried out by processes, and held against their simulation; training and sampling.

One executor walks a plan rank by rank, over messages and collectives of ``torch.distributed`` (gloo, or NCCL), whatever
the strategies plan. Training finds the gradients of one process, sampling draws its images and counts every byte. All
ranks run on one machine.
"""
