"""What a model needs and costs, said without making its code."""
