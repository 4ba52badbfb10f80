"""What it runs with: stacks, runtimes, recipes of training and levers of engines."""
