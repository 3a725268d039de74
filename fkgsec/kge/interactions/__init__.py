"""Interactions of PyKEEN as models: `pykeen:TransH` is any of them by its name, trained by autograd.

    KgeOptions(model="pykeen:TransH", algorithm="fede", dim=64)
    KgeOptions(model="pykeen:ConvE(output_channels=8)", algorithm="fedr", dim=64)

An interaction whose numbers are all in rows of entities and relations is a scoring function (`scoring`), which every algorithm
trains. One that has parameters of its own, such as ConvE's filters, is a model with an encoder (`network`): they are a network
that stays with its client. PyKEEN is imported when such a model is first named.
"""
