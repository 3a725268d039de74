"""The local work of clients on knowledge graphs: their stacked tables, training, evaluation, and the task of a federation."""
