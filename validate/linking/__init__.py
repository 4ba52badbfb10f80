"""Links: measured times of messages and collectives, and the cluster file that follows from them."""
