"""What a function may be given: dtypes, devices, shapes, numbers, and errors that name them."""

import functools
import inspect
import math
import numbers

import torch

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
NUMBERS = (int, float, numbers.Real)
STATE = "B, H, K, V"
Tensor, STRIDED = torch.Tensor, torch.strided


def check_tensor(name, x, r, dtypes=DTYPES, whose="r"):
    """Raises a TypeError or ValueError unless x is a tensor of one of `dtypes` on r's device.

    Args:
        whose: what r is called in messages.
    """
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(x).__name__}")
    if x.layout is not torch.strided:
        raise TypeError(f"{name} must be a dense tensor, got one of layout {x.layout}")
    if x.dtype not in dtypes:
        accepted = ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        raise TypeError(f"{name} must be one of {accepted}, got {x.dtype}")
    if x.device != r.device:
        raise ValueError(f"{name} must be on {whose}'s device {r.device}, got {x.device}")


def checked(**checks):
    """Makes a function look at its arguments first: `checks` has a function (name, value) of each.

    The attribute `unchecked` is the function itself, for calls that are right by their making.
    """

    def with_checks(function):
        names = list(inspect.signature(function).parameters)

        @functools.wraps(function)
        def call(*args, **named):
            for name, x in (*zip(names, args, strict=False), *named.items()):
                if name in checks:
                    checks[name](name, x)
            return function(*args, **named)

        call.unchecked = function
        return call

    return with_checks


def check_number(name, x, least=-math.inf):
    """Raises a TypeError or ValueError unless x is a finite number of at least `least`."""
    if type(x) is not float and (isinstance(x, bool) or not isinstance(x, NUMBERS)):
        raise TypeError(f"{name} must be a number, got {shown(x)}")
    if not -math.inf < x < math.inf or x < least:
        bound = "" if least == -math.inf else f", at least {least}"
        raise ValueError(f"{name} must be a finite number{bound}, got {x}")


def check_count(name, x, least=1):
    """Raises a TypeError or ValueError unless x is an integer of at least `least`."""
    if isinstance(x, bool) or not isinstance(x, int):
        raise TypeError(f"{name} must be an integer, got {shown(x)}")
    if x < least:
        raise ValueError(f"{name} must be an integer of at least {least}, got {x}")


def check_flag(name, x):
    """Raises a TypeError unless x is True or False."""
    if not isinstance(x, bool):
        raise TypeError(f"{name} must be True or False, got {shown(x)}")


def check_device_type(name, x):
    """Raises a ValueError unless x is the type of a device: "cuda", "cpu"."""
    try:
        right = torch.device(x).type == x
    except (RuntimeError, TypeError):
        right = False
    if not right:
        raise ValueError(
            f'{name} must be a torch.device.type such as "cuda" or "cpu", got {shown(x)}'
        )


def check_floating(name, x):
    """Raises a TypeError unless x is one of `DTYPES`."""
    if x not in DTYPES:
        accepted = ", ".join(map(str, DTYPES))
        raise TypeError(f"{name} must be one of {accepted}, got {shown(x)}")


def shown(x):
    """A value in a message: its type, and of what is short the value, too."""
    kind, short = type(x).__name__, isinstance(x, str | int | float | torch.dtype)
    return f"{kind} {x!r}" if short else kind


def check_dtype(name, x, r):
    """Raises a TypeError unless x has r's dtype."""
    if x.dtype != r.dtype:
        raise TypeError(f"{name} must have r's dtype {r.dtype}, got {x.dtype}")


def check_shape(name, x, letters, shape):
    """Raises a ValueError unless x has this shape."""
    if x.shape != shape:
        raise ValueError(f"{name} must be [{letters}] = {list(shape)}, got {list(x.shape)}")


def sizes_of(r, v):
    """B, T, H, K, V of r `[B, T, H, K]` and v `[B, T, H, V]`, or raises a ValueError."""
    if r.ndim != 4 or 0 in r.shape:
        raise ValueError(f"r must be [B, T, H, K] with sizes of at least 1, got {list(r.shape)}")
    B, T, H, K = r.shape
    V = v.shape[-1] if v.ndim == 4 else 0
    if V == 0 or v.shape[:3] != r.shape[:3]:
        raise ValueError(f"v must be [B, T, H, V] = [{B}, {T}, {H}, V ≥ 1], got {list(v.shape)}")
    return B, T, H, K, V


def sizes_if_right(r, v, alike, others, dtypes):
    """B, T, H, K, V where nothing is wrong with tensors, but maybe the shapes of `others`.

    None where something is: the checks that name it take three times as long, at every call.

    Args:
        r, v: `[B, T, H, K]` and `[B, T, H, V]`.
        alike: those of r's shape and dtype.
        others: the rest, of `dtypes`.
    """
    if not (isinstance(r, Tensor) and isinstance(v, Tensor)):
        return None
    dtype, device, shape, shape_of_v = r.dtype, r.device, r.shape, v.shape
    if not (dtype in dtypes and v.dtype is dtype and v.device == device):
        return None
    if not (r.layout is STRIDED and v.layout is STRIDED and len(shape) == len(shape_of_v) == 4):
        return None
    for x in alike:
        if not (isinstance(x, Tensor) and x.dtype is dtype and x.shape == shape):
            return None
        if not (x.device == device and x.layout is STRIDED):
            return None
    for x in others:
        if not (isinstance(x, Tensor) and x.dtype in dtypes):
            return None
        if not (x.device == device and x.layout is STRIDED):
            return None
    V = shape_of_v[-1]
    if 0 in shape or V == 0 or (shape_of_v != shape and shape_of_v != (*shape[:3], V)):
        return None
    return *shape, V


def check_time_mixing(r, k, v, w, u, s0, dtypes, w_per_token):
    """Returns B, T, H, K, V of a call with a bonus u, or raises an error that names the argument.

    Args:
        r, k, v, w, u, s0: as RWKV-5 and RWKV-6 take them; s0 may be None.
        w_per_token: whether w is a decay of each token, `[B, T, H, K]`, and not `[H, K]`.
    """
    if sizes := sizes_if_right(r, v, (k,), (w, u) if s0 is None else (w, u, s0), dtypes):
        B, T, H, K, V = sizes
        of_u = H, K
        if w.shape == (r.shape if w_per_token else of_u) and u.shape == of_u:
            if s0 is None or s0.shape == (B, H, K, V):
                return sizes
    tensors = {"r": r, "k": k, "v": v, "w": w, "u": u}
    if s0 is not None:
        tensors["s0"] = s0
    for name, x in tensors.items():
        check_tensor(name, x, r, dtypes)
    for name in "kv":
        check_dtype(name, tensors[name], r)
    B, T, H, K, V = sizes_of(r, v)
    shapes = {"B, T, H, K": (B, T, H, K), "H, K": (H, K), STATE: (B, H, K, V)}
    letters_of_w = "B, T, H, K" if w_per_token else "H, K"
    letters = {"k": "B, T, H, K", "w": letters_of_w, "u": "H, K", "s0": STATE}
    for name, of_name in letters.items():
        if name in tensors:
            check_shape(name, tensors[name], of_name, shapes[of_name])
    return B, T, H, K, V


def learns(*tensors):
    """Whether a call with these tensors, some of which may be None, needs gradients."""
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)
