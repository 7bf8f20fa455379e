"""WKV-5, the time mixing of RWKV-5: a matrix state whose rows decay, each at its own fixed rate.

For each head, with row vectors r, k, v, w, u and a K × V state S:

    o[t] = r[t] (S[t-1] + diag(u) k[t]ᵀ v[t])
    S[t] = diag(exp(w)) S[t-1] + k[t]ᵀ v[t]
"""

from .reference import wkv5_reference

METHODS = {"reference": wkv5_reference}
