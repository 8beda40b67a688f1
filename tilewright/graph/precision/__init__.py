"""In which dtypes a program computes, beside the one that it gives its tensors."""
