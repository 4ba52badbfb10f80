"""Real runs: plans carried out by processes and compared with their simulation, in training and sampling.

One executor walks any plan rank by rank, over the store and the collectives of ``torch.distributed``.
Training must find the gradients, and sampling the images, of a single process; sampling also counts every byte. All
ranks run on one machine.
"""
