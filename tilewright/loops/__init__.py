"""Loop programs: one kernel each; what may stand in them, what it means, and how it can be transformed."""
