"""What all other parts need: errors, forks, child processes, and where the native programs are."""
