"""The functions of flash_attn 2.8 with its signatures, layouts and results, over vkattn.

    from vkattn.flash_attn import flash_attn_func

Tensors are float16, bfloat16 or float32, on a CUDA device or the CPU. A CUDA device computes on PyTorch's current stream,
what its kernels take: in float16 and bfloat16 everything, gradients without ALiBi and dropout. What is not taken is a
NotImplementedError that names it. Gradients are deterministic always. The mask of dropout is that of
vkattn's generator, whose seed PyTorch's generator of the device draws, anew at each replay of a CUDA graph.
"""

from __future__ import annotations

from typing import Any, Optional, Tuple, Union

import torch

from . import _torch

__all__ = [
    "flash_attn_func", "flash_attn_kvpacked_func", "flash_attn_qkvpacked_func", "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func", "flash_attn_varlen_qkvpacked_func", "flash_attn_with_kvcache",
]  # fmt: skip

Tensor = torch.Tensor
Result = Union[Tensor, Tuple[Tensor, Tensor, Tensor]]


def _check(name: str, t: Any, dims: int, what: str) -> None:
    if not isinstance(t, Tensor):
        raise TypeError(f"{name} is a {type(t).__name__}, want a torch.Tensor")
    if t.dim() != dims:
        raise ValueError(f"{name} has shape {tuple(t.shape)}, want {what}")


def _result(o: Tensor, lse: Optional[Tensor], return_attn_probs: bool) -> Result:
    if return_attn_probs and lse is not None:
        return o, lse, o.new_empty(0)
    return o


def _refuse(dropout_p: float, return_attn_probs: bool) -> None:
    if return_attn_probs and dropout_p > 0:
        raise NotImplementedError("S_dmask of return_attn_probs with dropout_p")


def flash_attn_func(
    q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0, softmax_scale: Optional[float] = None, causal: bool = False,
    window_size: Tuple[int, int] = (-1, -1), softcap: float = 0.0, alibi_slopes: Optional[Tensor] = None,
    deterministic: bool = False, return_attn_probs: bool = False, max_logits: Optional[Tensor] = None,
) -> Result:  # fmt: skip
    """Attention of q [batch, rows, heads, dim] with k and v [batch, keys, key heads, dim].

    causal and window_size count positions from the last row and the last key. With return_attn_probs the result is the
    output, the log-sum-exp [batch, heads, rows] and an empty tensor. alibi_slopes are [heads] or [batch, heads]. max_logits
    float32 [heads] gets the largest score of each head over the call, behind scale and modifiers, as QK-clip takes it."""
    _refuse(dropout_p, return_attn_probs)
    for name, t in (("q", q), ("k", k), ("v", v)):
        _check(name, t, 4, "[batch, rows, heads, dim]")
    o, lse = _torch.attend(
        q, k, v, causal=_torch._BOTTOM_RIGHT if causal else _torch._NONE, window=window_size, softcap=softcap, scale=softmax_scale,
        alibi=alibi_slopes, dropout=dropout_p, max_logits=max_logits, rows_first=True, with_lse=return_attn_probs,
    )  # fmt: skip
    return _result(o, lse, return_attn_probs)


def flash_attn_kvpacked_func(q: Tensor, kv: Tensor, *args: Any, **options: Any) -> Result:
    """flash_attn_func of kv [batch, keys, 2, key heads, dim]."""
    _check("kv", kv, 5, "[batch, keys, 2, heads, dim]")
    return flash_attn_func(q, *kv.unbind(2), *args, **options)


def flash_attn_qkvpacked_func(qkv: Tensor, *args: Any, **options: Any) -> Result:
    """flash_attn_func of qkv [batch, rows, 3, heads, dim]."""
    _check("qkv", qkv, 5, "[batch, rows, 3, heads, dim]")
    return flash_attn_func(*qkv.unbind(2), *args, **options)


def flash_attn_varlen_func(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
    dropout_p: float = 0.0, softmax_scale: Optional[float] = None, causal: bool = False, window_size: Tuple[int, int] = (-1, -1),
    softcap: float = 0.0, alibi_slopes: Optional[Tensor] = None, deterministic: bool = False, return_attn_probs: bool = False,
    block_table: Optional[Tensor] = None, max_logits: Optional[Tensor] = None,
) -> Result:  # fmt: skip
    """Attention of packed sequences: q [all rows, heads, dim], k and v [all keys, key heads, dim]. cu_seqlens_q and
    cu_seqlens_k are int32 [batch + 1], cumulative lengths. With block_table int32 [batch, pages of a sequence] k and v are
    [pages, page size, key heads, dim]. The log-sum-exp is [heads, all rows]. max_logits is as in flash_attn_func."""
    _refuse(dropout_p, return_attn_probs)
    _check("q", q, 3, "[all rows, heads, dim]")
    for name, t in (("k", k), ("v", v)):
        if block_table is None:
            _check(name, t, 3, "[all keys, heads, dim]")
        else:
            _check(name, t, 4, "[pages, page size, heads, dim]")
    for name, t in (("cu_seqlens_q", cu_seqlens_q), ("cu_seqlens_k", cu_seqlens_k)):
        _check(name, t, 1, "[batch + 1]")
    lengths: Any = {"cu_k": cu_seqlens_k, "max_k": int(max_seqlen_k)}
    if block_table is None:
        k, v = k.transpose(0, 1).unsqueeze(0), v.transpose(0, 1).unsqueeze(0)
    else:
        k, v = k.transpose(1, 2), v.transpose(1, 2)
        lengths = {"used_k": cu_seqlens_k[1:] - cu_seqlens_k[:-1], "block_table": block_table}
    o, lse = _torch.attend(
        q.transpose(0, 1).unsqueeze(0), k, v, cu_q=cu_seqlens_q, max_q=int(max_seqlen_q), **lengths, causal=_torch._BOTTOM_RIGHT if causal else _torch._NONE, window=window_size, softcap=softcap,
        scale=softmax_scale, alibi=alibi_slopes, dropout=dropout_p, max_logits=max_logits,
    )  # fmt: skip
    return _result(o.squeeze(0).transpose(0, 1), lse.squeeze(0), return_attn_probs)


def flash_attn_varlen_kvpacked_func(
    q: Tensor, kv: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int, *args: Any, **options: Any
) -> Result:
    """flash_attn_varlen_func of kv [all keys, 2, key heads, dim]."""
    _check("kv", kv, 4, "[all keys, 2, heads, dim]")
    return flash_attn_varlen_func(q, *kv.unbind(1), cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, *args, **options)


def flash_attn_varlen_qkvpacked_func(qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, *args: Any, **options: Any) -> Result:
    """flash_attn_varlen_func of qkv [all rows, 3, heads, dim]."""
    _check("qkv", qkv, 4, "[all rows, 3, heads, dim]")
    return flash_attn_varlen_func(*qkv.unbind(1), cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, *args, **options)


def flash_attn_with_kvcache(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Optional[Tensor] = None, v: Optional[Tensor] = None,
    rotary_cos: Optional[Tensor] = None, rotary_sin: Optional[Tensor] = None, cache_seqlens: Union[int, Tensor, None] = None,
    cache_batch_idx: Optional[Tensor] = None, cache_leftpad: Optional[Tensor] = None, block_table: Optional[Tensor] = None,
    softmax_scale: Optional[float] = None, causal: bool = False, window_size: Tuple[int, int] = (-1, -1), softcap: float = 0.0,
    rotary_interleaved: bool = True, alibi_slopes: Optional[Tensor] = None, num_splits: int = 0, return_softmax_lse: bool = False,
) -> Union[Tensor, Tuple[Tensor, Tensor]]:  # fmt: skip
    """Attention of q [batch, rows, heads, dim] with caches [batch, keys, key heads, dim], of which each sequence uses
    cache_seqlens: an int for all, or int32 [batch]. k and v are first written behind them.

    Of larger caches cache_batch_idx int32 [batch] names each sequence's. With block_table int32 [batch, pages of a sequence]
    the caches are [pages, page size, key heads, dim]. On a GPU rows past the end of a cache are not written. rotary_cos and
    rotary_sin [at least the keys of a cache, at most dim / 2], of q's dtype or float32, rotate k, and q: under a causal mask or a
    window at the positions of k, otherwise all rows at cache_seqlens. It has no gradients."""
    if cache_leftpad is not None:
        raise NotImplementedError("cache_leftpad")
    if cache_batch_idx is not None and block_table is not None:
        raise ValueError("cache_batch_idx and block_table exclude one another")
    for name, t in (("q", q), ("k_cache", k_cache), ("v_cache", v_cache), ("k", k), ("v", v)):
        if t is not None or name not in ("k", "v"):
            _check(name, t, 4, "[batch, rows, heads, dim]")
    batch = q.shape[0]
    new = 0 if k is None else k.shape[1]
    if (k is None) != (v is None) or k is not None and cache_seqlens is None:
        raise ValueError("k, v and cache_seqlens go together")
    if (rotary_cos is None) != (rotary_sin is None) or rotary_cos is not None and k is None:
        raise ValueError("rotary_cos, rotary_sin, k and v go together")
    for name, t in (("rotary_cos", rotary_cos), ("rotary_sin", rotary_sin)):
        if t is not None:
            _check(name, t, 2, "[positions, angles]")
    table, capacity = block_table, k_cache.shape[1]
    if block_table is not None:
        _check("block_table", block_table, 2, "[batch, pages of a sequence]")
        capacity *= block_table.shape[1]
    elif cache_batch_idx is not None:
        _check("cache_batch_idx", cache_batch_idx, 1, "[batch]")
        table = cache_batch_idx[:, None]  # each cache is a page
    if table is not None and table.dtype != torch.int32:
        raise TypeError(f"{'cache_batch_idx' if block_table is None else 'block_table'} is of {table.dtype}, want int32")
    with torch.no_grad():
        used = length = None
        if isinstance(cache_seqlens, Tensor):
            _check("cache_seqlens", cache_seqlens, 1, "[batch]")
            if cache_seqlens.dtype != torch.int32:
                raise TypeError(f"cache_seqlens is of {cache_seqlens.dtype}, want int32")
            used = cache_seqlens
        elif cache_seqlens is not None:
            length = int(cache_seqlens)
            if not new <= length + new <= capacity:
                raise ValueError(f"cache_seqlens is {length}, with {new} rows behind, of {capacity} keys")
            if k is not None or table is not None:
                used = torch.full((batch,), length, dtype=torch.int32, device=q.device)
        if k is not None and v is not None and used is not None:
            by_position = causal or any(0 <= x < capacity for x in window_size)
            q = _torch.append(q, k, v, k_cache, v_cache, used, table, rotary_cos, rotary_sin, rotary_interleaved, not by_position)
        keys, values = k_cache, v_cache
        if length is not None and table is None:
            keys, values, used = k_cache[:, : length + new], v_cache[:, : length + new], None
        elif used is not None and new:
            used = used + new
        o, lse = _torch.attend(
            q.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2), used_k=used, block_table=table, window=window_size, softcap=softcap,
            causal=_torch._BOTTOM_RIGHT if causal else _torch._NONE, scale=softmax_scale, alibi=alibi_slopes,
        )  # fmt: skip
    o = o.transpose(1, 2)
    return (o, lse) if return_softmax_lse else o
