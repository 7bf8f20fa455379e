"""One sequence on many GPUs: each rank of a process group holds a run of its tokens.

What a run of tokens does to the state before it is an affine map, S ↦ A S + B. B is the state that
the run leaves behind when it starts from zero; A is a product of decays (RWKV-6) or a matrix
(RWKV-7). So a rank need not wait for the ranks before it:

    main pass     o and B, as if the state before its tokens were zero
    summary       A, and how far into its tokens the entry state reaches at all
    gather        every rank gets every map, and folds those before it into its entry state E
    correction    o[t] += r[t] A[..t] E, as far as E reaches

The backward pass is its mirror image: E's gradient comes from the correction alone, so that it is
first; the gather folds those of later ranks into the gradient of B; the main pass is last.

maps.py gathers and composes, rwkv6.py and rwkv7.py know A, cost.py says what it costs.
"""

from .parallel import DeadRank, sequence_parallel
from .pieces import split_tokens

__all__ = ["DeadRank", "sequence_parallel", "split_tokens"]
