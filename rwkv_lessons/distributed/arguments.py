"""What `sequence_parallel` and the functions that it makes may be given, on one rank alone."""

import functools
import inspect

import torch
import torch.distributed as dist

from ..runtime.arguments import DTYPES, check_count, check_shape, check_tensor


def is_of(family, operation):
    """Whether it is the family's `OPERATION` or a method of its package, with its arguments."""
    function, _ = without_options(operation)
    module, package = f"{getattr(function, '__module__', None)}.", family.OPERATION.__module__
    if not module.startswith(f"{package}."):
        return False
    names = *family.INPUTS, "s0"
    try:
        return tuple(inspect.signature(operation).parameters)[: len(names)] == names
    except ValueError:  # a partial with an option that there is not
        return False


def without_options(operation):
    """The operation, and by name what a `functools.partial` of it gives to it."""
    if isinstance(operation, functools.partial):
        return operation.func, operation.keywords
    return operation, {}


def with_start(operation):
    """The signature of the operation with `start`."""
    signature = inspect.signature(operation)
    start = inspect.Parameter("start", inspect.Parameter.KEYWORD_ONLY, default=None)
    return signature.replace(parameters=[*signature.parameters.values(), start])


def group_of(group):
    """The process group that an argument `group` means, None: all processes.

    Raises:
        TypeError, ValueError: it means none.
    """
    if hasattr(group, "get_group"):
        if group.ndim != 1:
            raise ValueError(f"group must be a DeviceMesh of one dimension, got {group.ndim}")
        return group.get_group()
    if not dist.is_initialized():
        raise ValueError("sequence_parallel needs a process group: call init_process_group first")
    outside = dist.GroupMember.NON_GROUP_MEMBER  # what new_group gives to processes outside
    if group not in (None, outside) and not isinstance(group, dist.ProcessGroup):
        kind = type(group).__name__
        raise TypeError(f"group must be a process group, a DeviceMesh or None, got {kind}")
    return group


def rank_of(group, device):
    """This process's rank in the group, whose backend must gather what is on the device."""
    rank = dist.get_rank(group)
    if rank < 0:
        here = dist.get_rank()
        raise ValueError(f"group must contain this process, got one without global rank {here}")
    backend = dist.get_backend_config(group)
    if f"{device.type}:" not in backend:
        raise ValueError(f"r must be on a device of the group's backend {backend}, got {device}")
    return rank


def check_others(r, v, s0, cu_seqlens, start):
    """Checks what the operation does not get as it is, beside an r and a v that are right.

    Returns:
        The numbers of cu_seqlens; None where nothing is packed.
    """
    (B, _, H, K), V = r.shape, v.shape[-1]
    ends, letters, sequences = None, "B, H, K, V", B
    if cu_seqlens is not None:
        if B != 1:
            raise ValueError(f"r must have B = 1 if cu_seqlens is given, got B = {B}")
        ends = _numbers_of(cu_seqlens)
        letters, sequences = "S, H, K, V", len(ends) - 1
    if start is not None:
        check_count("start", start, least=0)
        if ends is None:
            raise ValueError(f"start must be None without cu_seqlens, got {start}")
    if s0 is not None:
        check_tensor("s0", s0, r, DTYPES)
        check_shape("s0", s0, letters, (sequences, H, K, V))
    return ends


def _numbers_of(cu_seqlens):
    if not isinstance(cu_seqlens, torch.Tensor):
        raise TypeError(f"cu_seqlens must be a tensor, got {type(cu_seqlens).__name__}")
    if cu_seqlens.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"cu_seqlens must be one of int32, int64, got {cu_seqlens.dtype}")
    if cu_seqlens.ndim != 1 or len(cu_seqlens) < 2:
        raise ValueError(f"cu_seqlens must be [S + 1] with S ≥ 1, got {list(cu_seqlens.shape)}")
    return cu_seqlens.tolist()
