"""Networks and operators that nobody has looked at: drawn afresh, to find those that fell out of every strategy."""
