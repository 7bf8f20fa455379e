"""What the recurrences share that run over sequences: RWKV-5, RWKV-6 and RWKV-7."""
