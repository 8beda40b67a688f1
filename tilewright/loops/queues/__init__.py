"""What a machine with queues asks of a scheduled kernel."""
