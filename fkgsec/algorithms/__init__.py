"""The shipped algorithms: `settings` has their settings and recipes, the other modules what they add to local training."""
