"""One sequence on many GPUs: each rank of a process group holds consecutive tokens of it.

Consecutive tokens act on the state before them as an affine map, S ↦ A S + B. B is the state that
they leave if they start from zero; A is a product of decays (RWKV-6) or a matrix (RWKV-7). So a
rank need not wait for the ranks before it:

    main pass     computes o and B as if the state before its tokens were zero
    summary       computes A, and how many of its tokens the entry state reaches
    gather        gives every map to every rank, which folds those before it into its entry state E
    correction    o[t] += r[t] A[..t] E, for the tokens that E reaches

The backward pass mirrors this. E's gradient comes from the correction alone, so the correction is
first. The gather folds the gradients of later ranks into the gradient of B. The main pass is last.

Most kernels need no correction. RWKV-6's chunked kernels, and RWKV-7's with few heads, gather the
maps before the main pass, and RWKV-7's fused kernels compute A in the main pass (states_first.py).
Short packed sequences at a rank's ends are computed twice (twice.py). maps.py gathers and composes,
rwkv6.py and rwkv7.py compute A for the correction, cost.py predicts times.
"""

from .parallel import DeadRank, sequence_parallel
from .pieces import split_tokens

__all__ = ["DeadRank", "sequence_parallel", "split_tokens"]
