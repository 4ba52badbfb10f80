"""Training: plans carried out on a small model with the structure of a model folder, its gradients compared."""
