"""What runs in worker processes: the zygote, and the calls of functions that the native guest
makes.
"""
