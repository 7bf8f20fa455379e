"""How large ‖result − float64‖ / ‖float64‖ may be, over the numbers of one head.

float32   Sums of some hundred products, and log decays whose exp is right to 3e-8: a state that
          remembers 100 tokens is wrong by 3e-6. States are float32 in every dtype. dw is a
          difference of sums, of which strong decays leave a tenth: 1.1e-5 was seen.
float16   Rounding o costs 2.1e-4, and a factor rounded to 11 bits as much again, in quadrature:
          2.9e-4. Gradients have one more such factor, of the states that are kept: 3.6e-4. A head
          may have 10 % more.
bfloat16  The same with 8 bits: 1.66e-3, and 2.35e-3 with one factor. The kept states are rounded
          too, but what tokens read of a state is a part of the result. A head may have 15 % more.
float64   The two float64 methods held against each other, which all the others are held against.

Time-x rounds its results and nothing else: products of 16 bits are exact in float32, and those
of float32 right to 2^-21 in three TF32 products, of which some thousands add up.

Latent attention rounds what it attends with: o, the weights of the tokens, and keys and values or
the absorbed query, four roundings; its gradients twice as many.
"""

import math

WKV = {  # dtype → limit of o, of states, of gradients
    "float64": (1e-12, 1e-12, 1e-12),
    "float32": (1e-5, 1e-5, 2e-5),
    "float16": (3.2e-4, 1e-5, 4e-4),
    "bfloat16": (2.7e-3, 1e-5, 2.8e-3),
}
# WKV-7 multiplies in bfloat16 what the maps of its chunks and the states are rounded to, and z,
# which goes back into the state: four roundings in a result, three in a state.
WKV7 = {  # dtype → limit of o, of states, of gradients
    "float64": (1e-12, 1e-12, 1e-12),
    "float32": (1e-5, 1e-5, 2e-5),
    "float16": (4e-4, 5e-5, 5e-4),
    "bfloat16": (4e-3, 3e-3, 5.5e-3),
}
MLA = {  # dtype → limit of o, of its log-sum-exps, of gradients
    "float64": (1e-12, 1e-12, 1e-12),
    "float32": (1e-5, 1e-5, 2e-5),
    "float16": (5e-4, 2e-3, 1e-3),
    "bfloat16": (4e-3, 2e-2, 8e-3),
}


TIMEX = {  # dtype → limit of o; unused; of gradients
    "float64": (1e-12, 1e-12, 1e-12),
    "float32": (5e-6, 5e-6, 5e-6),
    "float16": (2.5e-4, 5e-6, 2.5e-4),
    "bfloat16": (2e-3, 5e-6, 2e-3),
}


def limit(table, dtype, name):
    """The limit of a result: "o", a state or log-sum-exp ("s1", "lse"), or a gradient ("dr")."""
    of_o, of_state, of_gradient = table[dtype]
    if name == "o":
        return of_o
    return of_state if name in ("s1", "lse") else of_gradient


def by_chance(n):
    """How much larger the error of n numbers may be: three deviations of the mean of n squares."""
    return 1 + 3 / math.sqrt(2 * n)


def relative(difference, expected):
    """‖difference‖ / ‖wanted‖ of each head, [heads, numbers] or [B, heads, numbers].

    Where terms of a head cancel, its size is that of the heads in the mean: their rounding is what
    is left. What is to be 0 in all of them is held against numbers of size 1.
    """
    size = expected.norm(dim=-1)
    size = size.maximum(size.square().mean().sqrt())
    return difference.norm(dim=-1) / size.where(size > 0, expected.shape[-1] ** 0.5)
