"""What a report tells of how a model is computed: the types of its kernels and of its layers, and why."""
