"""FedR: relation rows are averaged over the clients that hold them; entities never leave a client."""

from fkgsec.federation.recipes import RELATIONS, Recipe

FEDR = Recipe("fedr", RELATIONS, "fedr.txt Algorithm 1, without its PSU and SecAgg")
