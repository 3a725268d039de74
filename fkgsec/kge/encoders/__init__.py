"""Models with an encoder: rows pass through a graph neural network of the client's own before they are scored.

    KgeOptions(model="noge", algorithm="fedr", dim=128, learning_rate=0.01)
    ENCODERS["noge"].scoring                     # how input rows are compared where no encoder is at hand

What crosses are input rows, entities or relations as the algorithm says. The network stays with its client.
"""
