"""The part that runs in worker processes: the zygote, and what native loops call."""
