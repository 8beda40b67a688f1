"""WHERE boxes lie: offsets for what is needed from one step to another, such that those of the same time lie apart."""
