"""Two forms of one model beside each other, layer by layer (`tilewright.diff`).

Imported only when it is used: a program that compiles and runs models needs nothing of it.
"""
