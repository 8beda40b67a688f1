"""Vector math in double precision: polynomials as in single precision, with remainders of two numbers where one has not
the bits. Coefficients are near-minimax fits on Chebyshev nodes, computed with 60 digits and rounded; the errors given
are relative to the function, before any rounding of the evaluation."""
