"""The kinds of similarity that kernels know: minus L1 distance, minus summed complex moduli, dot product."""

# Integers, since compiled loops branch on them.
L1, MODULUS, DOT = 0, 1, 2
