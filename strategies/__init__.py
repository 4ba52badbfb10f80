"""Who does what, in which order: plans, partitions, schedules, and one file per strategy."""
