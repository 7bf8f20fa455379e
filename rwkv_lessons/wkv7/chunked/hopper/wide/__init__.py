"""RWKV-7 on Hopper for heads of 128 keys and values, in bfloat16."""
