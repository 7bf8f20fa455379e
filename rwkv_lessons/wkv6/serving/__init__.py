"""WKV-6 as an inference engine calls it: states in a pool, picked by index and written in place."""

from .packed import wkv6_serving

__all__ = ["wkv6_serving"]
