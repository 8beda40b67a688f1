"""What operators and regions compute and move, counted before anything is scheduled."""
