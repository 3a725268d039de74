"""Tuning of options by validation alone: search space, trials, and their output.

fkgsec tune --search learning_rate=log:1e-4:1e-2 --search gamma=5,9,12 --trials 20
"""
