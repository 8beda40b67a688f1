"""Files of weights that belong to no format of models."""
