"""Attention of models of the package transformers.

    from transformers import AutoModelForCausalLM
    import vkattn.transformers

    vkattn.transformers.register()
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="vkattn")

A padding mask makes packed sequences of a call."""

from __future__ import annotations

from typing import Any, Optional, Tuple

import torch

from . import _torch

__all__ = ["attention", "register"]

Tensor = torch.Tensor


def register(name: str = "vkattn") -> None:
    """Makes attn_implementation=name select vkattn. Masks are made as for flash_attention_2: padding alone."""
    from transformers import AttentionInterface
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface

    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, ALL_MASK_ATTENTION_FUNCTIONS["flash_attention_2"])


def attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Optional[Tensor] = None, scaling: Optional[float] = None,
    dropout: float = 0.0, is_causal: Optional[bool] = None, sliding_window: Optional[int] = None, softcap: Optional[float] = None,
    s_aux: Optional[Tensor] = None, **options: Any,
) -> Tuple[Tensor, None]:  # fmt: skip
    """O [batch, rows, heads, dim] of query, key and value [batch, heads, rows, dim], and None. attention_mask is None or
    bool or integers [batch, keys]: 0 is padding. s_aux [heads] are sinks, which have no gradient."""
    for option in ("head_mask", "position_bias", "block_table"):
        if options.get(option) is not None:
            raise NotImplementedError(option)
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    causal = causal and (query.shape[2] > 1 or sliding_window is not None)  # a single row sees all keys
    settings: Any = {
        "causal": _torch._BOTTOM_RIGHT if causal else _torch._NONE, "window": (-1, -1), "softcap": softcap or 0.0,
        "scale": scaling, "dropout": dropout if getattr(module, "training", True) else 0.0, "sinks": s_aux,
    }  # fmt: skip
    if sliding_window is not None and sliding_window < key.shape[2]:
        settings["window"] = (sliding_window - 1, -1 if causal else sliding_window - 1)
    if attention_mask is None:
        return _torch.attend(query, key, value, **settings)[0].transpose(1, 2).contiguous(), None
    if attention_mask.dim() != 2 or attention_mask.shape[0] != key.shape[0]:
        raise NotImplementedError(f"attention_mask of shape {tuple(attention_mask.shape)}: want [batch, keys]")
    batch, heads, rows, _ = query.shape
    seen = attention_mask[:, : key.shape[2]].bool()
    asked = seen[:, -rows:]  # the rows are the last of the keys
    q = query.transpose(1, 2)[asked]
    k, v = (x.transpose(1, 2)[seen] for x in (key, value))
    of_q, of_k = (torch.nn.functional.pad(m.sum(1).cumsum(0), (1, 0)).to(torch.int32) for m in (asked, seen))
    o = query.new_zeros(batch, rows, heads, value.shape[3])
    if q.shape[0]:
        packed, _ = _torch.attend(
            *(x.transpose(0, 1).unsqueeze(0) for x in (q, k, v)), cu_q=of_q, cu_k=of_k, max_q=int(asked.sum(1).max()),
            max_k=int(seen.sum(1).max()), **settings,
        )  # fmt: skip
        o = o.index_put((asked,), packed.squeeze(0).transpose(0, 1))
    return o, None
