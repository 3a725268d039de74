"""Knowledge-graph embedding: scoring functions, loss, negatives and ranking."""
