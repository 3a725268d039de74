"""Tuning of options on validation alone: what is searched, the trials, and what is written of them.

fkgsec tune --search learning_rate=log:1e-4:1e-2 --search gamma=5,9,12 --trials 20
"""
