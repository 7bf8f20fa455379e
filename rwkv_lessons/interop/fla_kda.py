"""Kimi's delta attention and gated delta nets of flash-linear-attention 0.6.0, answered by `wkv7`.

For each head, with row vectors q, k, v, a decay α = exp(g) per key channel and a rate β:

    S[t] = (I − β kᵀk) diag(α) S[t-1] + β kᵀ v          o = scale · q S[t]

which is WKV-7 with r = q, w = g, a = −α∘k, and βk for both b and its k: docs/kda.md. A gated
delta net has one decay for a head, so that its w is the same in all channels.

What changes with these functions: those of one token after the other have gradients too, no log
decay g ≤ 0 is too strong, nothing is autotuned, a CPU will do, and an argument that has no effect
here is an error unless it only tells FLA how to compute.
"""

import torch
from torch.nn import functional as F

from ..runtime.arguments import check_number, check_shape, check_tensor, learns, sizes_of
from ..runtime.packages import TRITON
from ..runtime.plain import launches_directly
from ..runtime.precision import sum_dtype
from ..sequences.arguments import count_sequences, holds_float64
from ..wkv7 import LARGEST, wkv7
from ..wkv7.kda.formulas import KDAForm, in_torch
from .arguments import arguments_called, turned

KDA_CHUNKS, GATED_CHUNKS = (32, 64), (16, 32, 64)  # sizes that FLA takes
SAFE_BOUND = -5  # the lowest bound of a gate that FLA takes with safe_gate
RENAMED = "transpose_state_layout"  # what state_v_first was called


def chunk_kda(
    q,
    k,
    v,
    g,
    beta,
    scale=None,
    initial_state=None,
    output_final_state=False,
    use_qk_l2norm_in_kernel=False,
    use_gate_in_kernel=False,
    use_beta_sigmoid_in_kernel=False,
    allow_neg_eigval=False,
    safe_gate=False,
    lower_bound=None,
    disable_recompute=False,
    return_intermediate_states=False,
    state_v_first=False,
    cu_seqlens=None,
    cu_seqlens_cpu=None,
    cp_context=None,
    use_graph=False,
    max_num_seqs=None,
    **kwargs,
):
    """Computes Kimi's delta attention, as `fla.ops.kda.chunk_kda` is called.

    Args:
        q, k: query and key, `[B, T, H, K]`, float32, float16, bfloat16 or float64.
        v: value, `[B, T, HV, V]`, HV a multiple of H: value heads share a query and a key.
        g: log decay, `[B, T, HV, K]`, at most 0 and as low as -inf; see use_gate_in_kernel. If q, k
            and v are in bfloat16, it is rounded to bfloat16, which changes a product of decays by
            at most 0.37 · 2⁻⁸. It is not if gradients are needed and K is not 128; kernels are
            then slower: docs/kda.md.
        beta: rate, `[B, T, HV]`, from 0 to 1, or to 2: with |k| = 1 states then stay bounded.
        scale: q is multiplied by it; K ** -0.5 if None.
        initial_state: before the first token, `[B, HV, K, V]` (keys × values), `[S, HV, K, V]` with
            cu_seqlens; zeros if None. It is not written to.
        output_final_state: whether to return the state.
        use_qk_l2norm_in_kernel: q and k are divided by √(their squared length + 1e-6).
        use_gate_in_kernel: g is not the decay yet. With A_log `[HV]` and dt_bias, `[HV · K]` or
            None, the log decay is −exp(A_log) · softplus(g + dt_bias), or with a lower_bound
            lower_bound · sigmoid(exp(A_log) · (g + dt_bias)), where A_log may be None.
        use_beta_sigmoid_in_kernel: the rate is sigmoid(beta), twice that with allow_neg_eigval.
        state_v_first: states are values × keys.
        cu_seqlens: where packed sequences start and end along T, `[S + 1]`; B must be 1.
        safe_gate: no effect here, as no decay needs a bound. As in FLA, it needs a lower_bound from
            -5 to below 0 where use_gate_in_kernel is given.
        lower_bound: of the gate, below 0; see use_gate_in_kernel.
        disable_recompute, cu_seqlens_cpu, max_num_seqs, chunk_size: accepted and not used.
        return_intermediate_states, cp_context, use_graph: not supported.
        kwargs: A_log, dt_bias, chunk_size, and transpose_state_layout for state_v_first.

    Returns:
        o `[B, T, HV, V]` in v's dtype, and the final state in float32 (float64 where q is), or
        None. All tensors have gradients, through both.

    Raises:
        TypeError, ValueError: an argument is not known, or has the wrong dtype, shape or device.
        NotImplementedError: an argument asks for what is not supported.

    Source: https://github.com/fla-org/flash-linear-attention (`fla/ops/kda`).
    """
    _refuse(cp_context=cp_context, return_intermediate_states=return_intermediate_states)
    _refuse(use_graph=use_graph)
    A_log, dt_bias = kwargs.pop("A_log", None), kwargs.pop("dt_bias", None)
    state_v_first = _of_kwargs(KDA_CHUNKS, kwargs, state_v_first)
    q, k = _of_heads(q, k, v)
    _like_tokens(q, g=(g, "B, T, HV, K", q.shape), beta=(beta, "B, T, HV", q.shape[:3]))
    form = _form(q, k, v, use_qk_l2norm_in_kernel, use_beta_sigmoid_in_kernel, allow_neg_eigval)
    if cu_seqlens_cpu is not None and cu_seqlens is None:
        raise ValueError("cu_seqlens_cpu needs cu_seqlens, the same numbers on q's device")
    parameters = None, None
    if not use_gate_in_kernel:
        _need_gate(A_log, dt_bias)
    else:
        form = form._replace(**_kda_gate(A_log, lower_bound, safe_gate))
        parameters = _parameters(g, A_log, dt_bias)
    tensors = q, k, g, beta, *parameters
    state = initial_state, output_final_state, state_v_first
    return _by_wkv7(tensors, form, v, scale, *state, cu_seqlens)


def fused_recurrent_kda(
    q,
    k,
    v,
    g,
    beta,
    A_log=None,
    dt_bias=None,
    scale=None,
    initial_state=None,
    output_final_state=False,
    use_qk_l2norm_in_kernel=False,
    use_gate_in_kernel=False,
    use_beta_sigmoid_in_kernel=False,
    allow_neg_eigval=False,
    lower_bound=None,
    state_v_first=False,
    cu_seqlens=None,
    **kwargs,
):
    """The same as `fla.ops.kda.fused_recurrent_kda` is called: note the order.

    Args:
        As of `chunk_kda`, A_log and dt_bias among them.

    Returns:
        As `chunk_kda`. There are gradients, which FLA's function has not.
    """
    return chunk_kda(
        q,
        k,
        v,
        g,
        beta,
        scale,
        initial_state,
        output_final_state,
        use_qk_l2norm_in_kernel,
        use_gate_in_kernel,
        use_beta_sigmoid_in_kernel,
        allow_neg_eigval,
        lower_bound=lower_bound,
        state_v_first=state_v_first,
        cu_seqlens=cu_seqlens,
        A_log=A_log,
        dt_bias=dt_bias,
        **kwargs,
    )


def chunk_gated_delta_rule(
    q,
    k,
    v,
    g,
    beta,
    scale=None,
    initial_state=None,
    output_final_state=False,
    use_qk_l2norm_in_kernel=False,
    use_beta_sigmoid_in_kernel=False,
    allow_neg_eigval=False,
    state_v_first=False,
    cu_seqlens=None,
    cu_seqlens_cpu=None,
    chunk_indices=None,
    cp_context=None,
    **kwargs,
):
    """A gated delta net, as `fla.ops.gated_delta_rule.chunk_gated_delta_rule` is called.

    Args:
        g: log decay of a head, `[B, T, HV]`, at most 0 and as low as -inf.
        chunk_indices: accepted and not used.
        cp_context: not supported.
        kwargs: use_gate_in_kernel: the log decay is −exp(A_log) · softplus(g + dt_bias), with A_log
            and dt_bias `[HV]`, dt_bias None for none; chunk_size, accepted and not used;
            transpose_state_layout for state_v_first. gk and gv, the log decays of key and of value
            channels, are no arguments of this function, as in FLA:
            `fused_recurrent_gated_delta_rule` has both.
        The others: as of `chunk_kda`.

    Returns:
        As `chunk_kda`.

    Raises:
        DeprecationWarning: head_first is given, as in FLA.
        TypeError, ValueError, NotImplementedError: as `chunk_kda`.

    Source: https://github.com/fla-org/flash-linear-attention (`fla/ops/gated_delta_rule`).
    """
    _refuse(cp_context=cp_context)
    if "head_first" in kwargs:
        raise DeprecationWarning("head_first has been removed: inputs must be [B, T, H, …]")
    gate = {name: kwargs.pop(name, None) for name in ("use_gate_in_kernel", "A_log", "dt_bias")}
    state_v_first = _of_kwargs(GATED_CHUNKS, kwargs, state_v_first)
    check_tensor("q", q, q)
    check_tensor("g", g, q, whose="q")
    return fused_recurrent_gated_delta_rule(
        q,
        k,
        v,
        g,
        None,
        None,
        beta,
        scale,
        initial_state,
        output_final_state,
        use_qk_l2norm_in_kernel,
        **gate,
        use_beta_sigmoid_in_kernel=use_beta_sigmoid_in_kernel,
        allow_neg_eigval=allow_neg_eigval,
        state_v_first=state_v_first,
        cu_seqlens=cu_seqlens,
    )


def fused_recurrent_gated_delta_rule(
    q,
    k,
    v,
    g=None,
    gk=None,
    gv=None,
    beta=None,
    scale=None,
    initial_state=None,
    output_final_state=False,
    use_qk_l2norm_in_kernel=False,
    use_gate_in_kernel=False,
    A_log=None,
    dt_bias=None,
    use_beta_sigmoid_in_kernel=False,
    allow_neg_eigval=False,
    state_v_first=False,
    cu_seqlens=None,
    **kwargs,
):
    """The same as `fla.ops.gated_delta_rule.fused_recurrent_gated_delta_rule` is called.

    Args:
        g: log decay of a head, `[B, T, HV]`; none if None.
        gk: log decay of each key channel, `[B, T, HV, K]`, added to g; none if None.
        gv: log decay of each value channel, not supported: WKV-7 decays by key channel only.
        beta: ones if None.
        The others: as of `chunk_gated_delta_rule`; note the order.

    Returns:
        As `chunk_kda`. There are gradients, which FLA's function has not.
    """
    _refuse(gv=gv)
    state_v_first = _of_kwargs(GATED_CHUNKS, kwargs, state_v_first)
    q, k = _of_heads(q, k, v)
    beta = q.new_ones(q.shape[:3]) if beta is None else beta
    per_token = {"g": (g, "B, T, HV", q.shape[:3]), "gk": (gk, "B, T, HV, K", q.shape)}
    per_token = {name: x for name, x in per_token.items() if x[0] is not None}
    _like_tokens(q, **per_token, beta=(beta, "B, T, HV", q.shape[:3]))
    if not use_gate_in_kernel:
        _need_gate(A_log, dt_bias)
    else:
        if g is None:
            raise ValueError("g is None: use_gate_in_kernel needs what the decay is made of")
        _need_A_log(A_log)
        A_log, dt_bias = _parameters(g, A_log, dt_bias)
        g = g.to(sum_dtype(g.dtype))
        x = g if dt_bias is None else g + dt_bias
        g = -A_log.to(g.dtype).exp() * F.softplus(x)
    decays = [x for x in (None if g is None else g[..., None], gk) if x is not None]
    w = sum(decays) if decays else q.new_zeros(q.shape[:3] + (1,))
    form = _form(q, k, v, use_qk_l2norm_in_kernel, use_beta_sigmoid_in_kernel, allow_neg_eigval)
    tensors = q, k, w, beta, None, None
    state = initial_state, output_final_state, state_v_first
    return _by_wkv7(tensors, form, v, scale, *state, cu_seqlens)


def _as_rwkv7(tensors, form):
    """r, w, k, b and a of `wkv7`: see wkv7/kda/formulas.py."""
    q = tensors[0]
    if not TRITON or not q.is_cuda or q.shape[-1] > LARGEST:
        return in_torch(*tensors, form)
    if form.dtype == torch.float64 or holds_float64(*tensors) or not launches_directly(*tensors):
        return in_torch(*tensors, form)  # of which torch.compile makes kernels itself
    from ..wkv7.kda.kernels import InTriton

    r, *others = InTriton.apply(*tensors, form)
    return q.to(form.dtype) if r is None else r, *others


def _by_wkv7(tensors, form, v, scale, initial_state, output_final_state, state_v_first, cu_seqlens):
    """The results of a call.

    Args:
        tensors, form: as of wkv7/kda/formulas.py, q and k of all value heads.
    """
    q = tensors[0]
    letter, n = "B", q.shape[0]
    if cu_seqlens is not None:
        with arguments_called(r="q"):
            letter, n = "S", count_sequences(cu_seqlens, q)
    if initial_state is not None:
        check_tensor("initial_state", initial_state, q, whose="q")
        letters, (K, V) = ("V, K" if state_v_first else "K, V"), (q.shape[3], v.shape[3])
        expected = (n, q.shape[2], *((V, K) if state_v_first else (K, V)))
        check_shape("initial_state", initial_state, f"{letter}, HV, {letters}", expected)
        initial_state = turned(initial_state) if state_v_first else initial_state
    form = form._replace(learns=learns(*tensors, v, initial_state))
    r, w, k, b, a = _as_rwkv7(tensors, form)
    o, s1 = wkv7(
        r,
        w,
        k,
        v.to(r.dtype),
        a,
        b,
        initial_state,
        cu_seqlens=cu_seqlens,
        scale=q.shape[-1] ** -0.5 if scale is None else scale,
    )
    if not output_final_state:
        return o.to(v.dtype), None
    return o.to(v.dtype), turned(s1) if state_v_first else s1


def _of_heads(q, k, v):
    """q and k of each value head, from those that HV / H value heads share."""
    for name, x in {"q": q, "k": k, "v": v}.items():
        check_tensor(name, x, q, whose="q")
    if q.ndim != 4 or 0 in q.shape:
        raise ValueError(f"q must be [B, T, H, K] with sizes of at least 1, got {list(q.shape)}")
    check_shape("k", k, "B, T, H, K", q.shape)
    H, HV = q.shape[2], v.shape[2] if v.ndim == 4 else 0
    if HV % H:
        raise ValueError(f"v must have a multiple of q's heads, H = {H}, got HV = {HV}")
    if HV > H:
        q, k = (x.repeat_interleave(HV // H, 2) for x in (q, k))
    sizes_of(q, v)
    return q, k


def _like_tokens(q, **per_token):
    """Checks what each token and each value head has: name → (tensor, letters, shape)."""
    for name, (x, letters, shape) in per_token.items():
        check_tensor(name, x, q, whose="q")
        if name == "beta" and x.ndim == 4:
            raise NotImplementedError(
                f"beta is {list(x.shape)}: a rate for each value channel is not supported, "
                "give one for each head, [B, T, HV]"
            )
        check_shape(name, x, letters, shape)


def _of_kwargs(sizes, kwargs, state_v_first):
    """Checks what FLA takes by name only, and returns whether states are values × keys."""
    size = kwargs.pop("chunk_size", None)
    if size is not None and size not in sizes:
        allowed = " or ".join(map(str, sizes))
        raise ValueError(f"chunk_size must be {allowed}, got {size!r}")
    if RENAMED in kwargs:
        if state_v_first:
            raise ValueError(f"{RENAMED} is the old name of state_v_first: give one of them")
        state_v_first = kwargs.pop(RENAMED)
    if kwargs:
        raise TypeError(
            f"no argument is called {', '.join(map(repr, kwargs))}: see FLA's signature"
        )
    return state_v_first


def _refuse(**options):
    reasons = {
        "cp_context": "one sequence over several GPUs",
        "return_intermediate_states": "the states between chunks",
        "use_graph": "a chunk list for graphs; a call can be captured without it",
        "gv": "a decay for each value channel; WKV-7 decays by key channel, as gk does",
    }
    for name, value in options.items():
        if value is not None and value is not False:
            raise NotImplementedError(f"{name} is not supported: {reasons[name]}")


def _form(q, k, v, norm, sigmoid, doubled):
    """What is to be made of a call's arguments, without a gate."""
    if doubled and not sigmoid:
        raise ValueError("allow_neg_eigval needs use_beta_sigmoid_in_kernel: it doubles a sigmoid")
    dtype = torch.promote_types(torch.promote_types(q.dtype, k.dtype), v.dtype)
    return KDAForm(dtype, bool(norm), rate=(2 if doubled else 1) if sigmoid else 0)


def _kda_gate(A_log, lower_bound, safe_gate):
    """How KDA's layer makes the log decay: fields of a `KDAForm`."""
    if lower_bound is None:
        if safe_gate:
            raise ValueError("safe_gate needs a lower_bound where use_gate_in_kernel is given")
        _need_A_log(A_log)
        return {"gate": "softplus"}
    check_number("lower_bound", lower_bound)
    if lower_bound >= 0:
        raise ValueError(f"lower_bound must be below 0, got {lower_bound!r}")
    if safe_gate and lower_bound < SAFE_BOUND:
        raise ValueError(
            f"lower_bound must be from {SAFE_BOUND} to below 0 with safe_gate, as in FLA, got "
            f"{lower_bound!r}: leave out safe_gate, which this library does not need"
        )
    return {"gate": "sigmoid", "lower_bound": float(lower_bound)}


def _need_gate(A_log, dt_bias):
    if A_log is not None or dt_bias is not None:
        raise ValueError("A_log and dt_bias need use_gate_in_kernel: without it g is the decay")


def _need_A_log(A_log):
    if A_log is None:
        raise ValueError("A_log is None: use_gate_in_kernel needs it, [HV]")


def _parameters(g, A_log, dt_bias):
    """A_log `[HV]` and dt_bias in g's last dimensions; None where they are."""
    for name, x, letters, n in (
        ("A_log", A_log, "HV", g.shape[2]),
        ("dt_bias", dt_bias, "HV" if g.ndim == 3 else "HV · K", g.shape[2:].numel()),
    ):
        if x is None:
            continue
        check_tensor(name, x, g, whose="g")
        if x.numel() != n:
            raise ValueError(f"{name} must be [{letters}] = [{n}], got {list(x.shape)}")
    A_log = None if A_log is None else A_log.reshape(g.shape[2])
    return A_log, None if dt_bias is None else dt_bias.reshape(g.shape[2:])
