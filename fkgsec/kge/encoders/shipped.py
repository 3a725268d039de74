"""Registers the models with an encoder that come with fkgsec, in the order in which they are named."""

from fkgsec.kge.encoders.kb_gat import KB_GAT
from fkgsec.kge.encoders.noge import NOGE
from fkgsec.kge.models import ENCODERS

ENCODERS.register("noge", NOGE)
ENCODERS.register("kb-gat", KB_GAT)
