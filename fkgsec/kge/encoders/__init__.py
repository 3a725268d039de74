"""Models with an encoder: rows pass through a graph neural network of the client before they are scored.

    KgeOptions(model="noge", algorithm="fedr", dim=128, learning_rate=0.01)
    ENCODERS["noge"].scoring                     # compares input rows where the encoder is unavailable

Clients transmit input rows of entities or relations, as the algorithm says. The network stays with its client.
"""
