"""The functions of flash_attn 2.8 with its signatures, layouts and results, over vkattn.

    from vkattn.flash_attn import flash_attn_func

Tensors are float16, bfloat16 or float32, on a CUDA device or the CPU. A CUDA device computes on PyTorch's current stream,
what its kernels take: forward dense and causal attention, gradients also of packed sequences, windows and softcap. What is
not taken is a NotImplementedError that names it. Gradients are deterministic always. The mask of dropout is that of
vkattn's generator, whose seed PyTorch's CPU generator draws.
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


def _result(o: Tensor, lse: Tensor, return_attn_probs: bool) -> Result:
    if return_attn_probs:
        return o, lse, o.new_empty(0)
    return o


def _refuse(dropout_p: float, return_attn_probs: bool) -> None:
    if return_attn_probs and dropout_p > 0:
        raise NotImplementedError("S_dmask of return_attn_probs with dropout_p")


def flash_attn_func(
    q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0, softmax_scale: Optional[float] = None, causal: bool = False,
    window_size: Tuple[int, int] = (-1, -1), softcap: float = 0.0, alibi_slopes: Optional[Tensor] = None,
    deterministic: bool = False, return_attn_probs: bool = False,
) -> Result:  # fmt: skip
    """Attention of q [batch, rows, heads, dim] with k and v [batch, keys, key heads, dim].

    causal and window_size count positions from the last row and the last key. With return_attn_probs the result is the
    output, the log-sum-exp [batch, heads, rows] and an empty tensor."""
    _refuse(dropout_p, return_attn_probs)
    for name, t in (("q", q), ("k", k), ("v", v)):
        _check(name, t, 4, "[batch, rows, heads, dim]")
    options = softmax_scale, bool(causal), tuple(window_size), softcap
    plain = not dropout_p and alibi_slopes is None and not return_attn_probs
    if plain:
        again = _torch.repeated(q, k, v, *options)
        if again is not None:
            return again
    alignment = _torch._BOTTOM_RIGHT if causal else _torch._NONE
    o, lse = _torch.attend(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), causal=alignment,
        window=window_size, softcap=softcap, scale=softmax_scale, alibi=alibi_slopes, dropout=dropout_p,
    )  # fmt: skip
    o = o.transpose(1, 2)
    if plain and not o.requires_grad and not _torch._compiling():
        _torch.remember(q, k, v, o, alignment, window_size, softcap, softmax_scale, *options)
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
    block_table: Optional[Tensor] = None,
) -> Result:  # fmt: skip
    """Attention of packed sequences: q [all rows, heads, dim], k and v [all keys, key heads, dim]. cu_seqlens_q and
    cu_seqlens_k are int32 [batch + 1], cumulative lengths. The log-sum-exp is [heads, all rows]."""
    _refuse(dropout_p, return_attn_probs)
    if block_table is not None:
        raise NotImplementedError("block_table")
    for name, t in (("q", q), ("k", k), ("v", v)):
        _check(name, t, 3, "[all rows, heads, dim]")
    for name, t in (("cu_seqlens_q", cu_seqlens_q), ("cu_seqlens_k", cu_seqlens_k)):
        _check(name, t, 1, "[batch + 1]")
    o, lse = _torch.attend(
        *(x.transpose(0, 1).unsqueeze(0) for x in (q, k, v)), cu_q=cu_seqlens_q, cu_k=cu_seqlens_k, max_q=int(max_seqlen_q),
        max_k=int(max_seqlen_k), causal=_torch._BOTTOM_RIGHT if causal else _torch._NONE, window=window_size, softcap=softcap,
        scale=softmax_scale, alibi=alibi_slopes, dropout=dropout_p,
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
    cache_seqlens: an int for all, or int32 [batch]. k and v are first written behind them. It has no gradients."""
    for name, t in (("rotary_cos", rotary_cos), ("rotary_sin", rotary_sin), ("cache_batch_idx", cache_batch_idx),
                    ("cache_leftpad", cache_leftpad), ("block_table", block_table)):  # fmt: skip
        if t is not None:
            raise NotImplementedError(name)
    for name, t in (("q", q), ("k_cache", k_cache), ("v_cache", v_cache), ("k", k), ("v", v)):
        if t is not None or name not in ("k", "v"):
            _check(name, t, 4, "[batch, rows, heads, dim]")
    new = 0 if k is None else k.shape[1]
    if (k is None) != (v is None) or k is not None and cache_seqlens is None:
        raise ValueError("k, v and cache_seqlens go together")
    with torch.no_grad():
        used, keys, values = None, k_cache, v_cache
        if isinstance(cache_seqlens, Tensor):
            _check("cache_seqlens", cache_seqlens, 1, "[batch]")
            if cache_seqlens.dtype != torch.int32:
                raise TypeError(f"cache_seqlens is of {cache_seqlens.dtype}, want int32")
            used = cache_seqlens + new
            at = cache_seqlens.long()[:, None] + torch.arange(new, device=q.device)
            for cache, x in ((k_cache, k), (v_cache, v)):
                if x is not None:
                    cache.scatter_(1, at[:, :, None, None].expand_as(x), x)
        elif cache_seqlens is not None:
            end = int(cache_seqlens) + new
            if not new <= end <= k_cache.shape[1]:
                raise ValueError(f"cache_seqlens is {cache_seqlens}, with {new} rows behind, of {k_cache.shape[1]} keys")
            keys, values = k_cache[:, :end], v_cache[:, :end]
            if k is not None and v is not None:
                keys[:, end - new :], values[:, end - new :] = k, v
        o, lse = _torch.attend(
            q.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2), used_k=used, window=window_size, softcap=softcap,
            causal=_torch._BOTTOM_RIGHT if causal else _torch._NONE, scale=softmax_scale, alibi=alibi_slopes,
        )  # fmt: skip
    o = o.transpose(1, 2)
    return (o, lse) if return_softmax_lse else o
