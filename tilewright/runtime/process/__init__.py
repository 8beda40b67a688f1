"""What belongs to the process, and not to one model: its threads, its forks."""
