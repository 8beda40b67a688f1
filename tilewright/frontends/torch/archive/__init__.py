"""Files that `torch.export.save` writes, read without running what they hold."""
