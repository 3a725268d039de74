"""Foundations of all protocols.

    errors        one class for each misuse or attack
    rounds        a round as a pair of generators, and the driver for one process
    one_shot      steps that a party takes once
    keys          key agreement, signatures, sealed messages
    prg           randomness, key derivation, keystreams, rings
    shamir        secret sharing
    masking       masks added to vectors of ring elements
    fixed_point   real values as ring elements

None of these modules knows of secure aggregation, private set union or noise.
"""
