"""Real runs: plans carried out by processes and compared with their simulation, in training and sampling.

One executor walks any plan rank by rank, over messages and collectives of ``torch.distributed`` (gloo, or NCCL).
Training must find the gradients, and sampling the images, of a single process; sampling also counts every byte. All
ranks run on one machine.
"""
