"""RWKV-7's forward pass in one launch, for Hopper."""
