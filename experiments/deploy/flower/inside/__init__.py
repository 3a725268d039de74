"""What runs in Flower's environment: it needs Flower and what Flower needs, and nothing of fkgsec."""
