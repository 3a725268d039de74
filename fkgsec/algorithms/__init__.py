"""Built-in algorithms: `settings` has their settings and recipes, the other modules their additions to local
training."""
