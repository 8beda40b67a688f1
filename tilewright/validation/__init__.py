"""Translation validation: what passes, schedules and code generation make of a program is computed beside what it was
made of, on inputs of several kinds, and what changes the meaning is switched off for that model (decision 131).

Imported only when somebody asks for it (`compile(..., validate=True)`, `tilewright diff --bisect`).
"""
