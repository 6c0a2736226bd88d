"""Float64 attention on the GPU, and the rules by which a result is judged against it.

Used by cuda_peer.py. The rules are the same as in internal/accuracy.
"""
import ctypes

import torch

TYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}


def f32(x):
    return ctypes.c_float(x).value


def blank(layout, b, h, s, d, dtype, fill=float("nan")):
    """A view [batch, head, row, dim] of memory of a layout, all of it `fill`; padding is what the view leaves out."""
    if layout == "bhsd":
        return torch.full((b, h, s, d), fill, device="cuda", dtype=dtype)
    if layout == "bshd":
        return torch.full((b, s, h, d), fill, device="cuda", dtype=dtype).transpose(1, 2)
    if layout == "padded":  # strides of rows and heads larger than necessary
        return torch.full((b, h, s + 3, d + 8 + -d % 8), fill, device="cuda", dtype=dtype)[:, :, :s, :d]
    if layout == "odd":  # no alignment at all
        flat = torch.full((b * h * (s + 1) * (d + 1) + 1,), fill, device="cuda", dtype=dtype)
        return flat[1:].view(b, h, s + 1, d + 1)[:, :, :s, :d]
    raise ValueError(layout)


def make(layout, b, h, s, d, dtype):
    t = blank(layout, b, h, s, d, dtype)
    t.copy_(torch.randn(b, h, s, d, device="cuda").to(dtype))
    return t


def hidden(p, first=0, rows=None):
    """Masked slots of some rows, or None."""
    if p.causal == "none":
        return None
    rows = p.Sq if rows is None else rows
    r = torch.arange(first, first + rows, device="cuda")[:, None]
    return torch.arange(p.Sk, device="cuda")[None, :] > r + p.offset()


def reference(p, b, h, first, rows):
    """O and LSE in float64, and O by plain attention in the storage type, for rows of one head."""
    q, kv = p.q[b, h, first : first + rows], h // (p.Hq // p.Hkv)
    k, v = p.k[b, kv], p.v[b, kv]
    scale = f32(p.scale)
    mask = hidden(p, first, rows)
    s = q.double() @ k.double().T * scale
    if mask is not None:
        s.masked_fill_(mask, float("-inf"))
    lse = torch.logsumexp(s, -1)
    exact = torch.where((lse == float("-inf"))[:, None], torch.zeros((), dtype=torch.float64, device="cuda"),
                        torch.exp(s - torch.where(lse == float("-inf"), torch.zeros_like(lse), lse)[:, None]) @ v.double())
    s = (q.float() @ k.float().T * scale).to(q.dtype)
    if mask is not None:
        s.masked_fill_(mask, float("-inf"))
    w = torch.softmax(s.float(), -1).nan_to_num_(0).to(q.dtype)
    return exact, lse, (w.float() @ v.float()).to(q.dtype).double()


FLOOR = {"f16": 1e-5, "bf16": 1e-4, "f32": 1e-10}


def judge(p, o, lse, heads=None, block=1024):
    """The three rules over all rows of some heads, and LSE. Returns (reason or None, numbers)."""
    worst = {"max_error": 0.0, "nmse": 0.0, "lse_error": 0.0}
    heads = heads or [(b, h) for b in range(p.B) for h in range(p.Hq)]
    for b, h in heads:
        for first in range(0, p.Sq, block):
            rows = min(block, p.Sq - first)
            exact, exact_lse, low = reference(p, b, h, first, rows)
            got = o[b, h, first : first + rows].double()
            where = "batch %d head %d rows %d.." % (b, h, first)
            error, allowed = (got - exact).abs(), (low - exact).abs()
            size = float((exact * exact).sum())
            nmse = float((error**2).sum()) / size if size else float((error**2).sum())
            nmse_low = float((allowed**2).sum()) / size if size else 0.0
            worst["max_error"] = max(worst["max_error"], float(error.max()))
            worst["nmse"] = max(worst["nmse"], nmse)
            if not float(error.max()) <= 2 * float(allowed.max()) + 1e-5:
                return "max error %.3g over %.3g at %s" % (error.max(), 2 * allowed.max() + 1e-5, where), worst
            if not float(error.mean()) <= 1.5 * float(allowed.mean()) + 1e-6:
                return "mean error %.3g over %.3g at %s" % (error.mean(), 1.5 * allowed.mean() + 1e-6, where), worst
            if not nmse <= max(FLOOR[p.dtype], 4 * nmse_low):
                return "NMSE %.3g at %s" % (nmse, where), worst
            if lse is not None:
                got = lse[b, h, first : first + rows].double()
                empty = exact_lse == float("-inf")
                if not bool((got[empty] == float("-inf")).all()):
                    return "LSE of an empty row at " + where, worst
                away = ((got - exact_lse).abs() / (1 + exact_lse.abs()))[~empty]
                if away.numel():
                    worst["lse_error"] = max(worst["lse_error"], float(away.max()))
                    if not float(away.max()) <= 2e-5:
                        return "LSE off by %.3g at %s" % (away.max(), where), worst
    return None, worst
