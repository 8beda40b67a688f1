"""Memory that a model keeps from call to call."""
