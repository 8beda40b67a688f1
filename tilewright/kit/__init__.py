"""What the kit tells an engineer of a machine that is given by facts: a page of it, and what it lacks."""
