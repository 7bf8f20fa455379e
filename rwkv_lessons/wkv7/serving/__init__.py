"""WKV-7 as an inference engine calls it: states in a pool, picked by index and written in place.

`wkv7_serving` takes prompts and single tokens of many sequences in one call; `wkv7_verify` and
`wkv7_commit` take several drafted tokens of each sequence, of which some are accepted.
"""

from .drafts import wkv7_commit, wkv7_verify
from .packed import wkv7_serving, wkv7_workspace

__all__ = ["wkv7_commit", "wkv7_serving", "wkv7_verify", "wkv7_workspace"]
