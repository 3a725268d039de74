"""Graph neural networks for graph classification, and their federation: models, batches, training, the `graph` task."""
