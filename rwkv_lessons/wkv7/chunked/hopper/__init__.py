"""RWKV-7's forward pass in one launch, for Hopper: an experiment that no GPU has run yet."""
