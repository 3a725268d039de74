"""What a GPU makes of fkgsec in a given time: its tests, its speed, and cells of the papers' tables. It needs no numba.

python -m experiments.bench.gpu --minutes 25 --out runs/gpu
"""
