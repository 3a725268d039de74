"""What every protocol stands on: errors, keys, ciphers and rings, shares, masks, fixed point, steps that are taken once."""
