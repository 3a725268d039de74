"""The generated pages of the reference: of commands, algorithms, attacks, defenses and protocols."""
