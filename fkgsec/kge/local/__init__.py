"""Local work of clients on knowledge graphs: stacked tables, training, evaluation, and the task of a federation."""
