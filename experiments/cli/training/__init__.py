"""What `fkgsec train`, `attack` and `compare` share: whose value each option is, and what is printed."""
