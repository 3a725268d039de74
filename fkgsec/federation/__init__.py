"""The federation: recipes, clients, messages, and the one loop."""
