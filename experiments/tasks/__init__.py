"""Both tasks in experiments, a module for each: options, figures, and wording."""
