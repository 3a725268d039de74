"""Graph neural networks for graph classification, and their federation: models, batches, training, and the task
`graph`.
"""
