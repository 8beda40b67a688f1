"""Products and windows in the forms that units of accelerators take."""
