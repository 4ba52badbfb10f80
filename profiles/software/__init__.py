"""Software: stacks, runtimes, memory recipes of training and levers of sampling."""
