"""Interactions of PyKEEN as models: `pykeen:TransH` names any of them; they are trained by autograd.

    KgeOptions(model="pykeen:TransH", algorithm="fede", dim=64)
    KgeOptions(model="pykeen:ConvE(output_channels=8)", algorithm="fedr", dim=64)

An interaction whose parameters are all rows of entities and relations is a scoring function (`scoring`), which every
algorithm trains. An interaction with further parameters, such as ConvE's filters, is a model with an encoder
(`network`): they form a network that stays with its client. PyKEEN is imported when such a model is first named.
"""
