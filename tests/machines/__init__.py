"""A machine that is none of ours: facts, back end and simulator, as a package from outside would bring them."""
