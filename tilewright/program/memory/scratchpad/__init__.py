"""Plans for a memory that the program manages itself: what is loaded, computed, stored and freed, and when."""
