"""Tables whose rows are those of tensors, such as a network's parameters: parts that must know which rows are one tensor."""
