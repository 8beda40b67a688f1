"""Integer expressions: nodes, arithmetic, conditions, parsing and proofs; `ir.sym` is the face."""
