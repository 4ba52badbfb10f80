"""What models run with: stacks, runtimes, memory recipes of training and levers of sampling."""
