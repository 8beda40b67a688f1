"""A compiled model to look at: one HTML file that opens without a network (`tilewright.write_report`), and plots.

Imported only when it is used: a program that compiles and runs models needs nothing of it.
"""
