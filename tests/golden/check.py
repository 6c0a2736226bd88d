#!/usr/bin/env python3
"""Computes the golden outputs again with NumPy, in float64, and compares.

It shares nothing with the program that wrote them: the whole matrix of scores
is formed, masked with -inf and normalized. Prints one line per case and the
largest difference; the exit status is 1 when one is over 1e-12 of the larger of
1 and the value.
"""
import json
import pathlib
import sys

import numpy as np

here = pathlib.Path(__file__).resolve().parent
LIMIT = 1e-12


def load(name, tensor):
    return np.load(here / f"{name}.{tensor}.npy", allow_pickle=False)


def attention(case, q, k, v):
    """O and LSE of one case; q, k, v are [B, H, S, D] in float64."""
    group = case["hq"] // case["hkv"]
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    scale = case["scale"]
    # The scale is a float32 in the library, the default one included.
    scale = np.float64(np.float32(1 / np.sqrt(case["head_dim"]) if scale is None else scale))
    scores = scale * np.einsum("bhid,bhjd->bhij", q, k)
    row = np.arange(case["sq"])[:, None]
    col = np.arange(case["sk"])[None, :]
    if case["causal"] == "top-left":
        scores = np.where(col <= row, scores, -np.inf)
    elif case["causal"] == "bottom-right":
        scores = np.where(col <= row + case["sk"] - case["sq"], scores, -np.inf)
    most = scores.max(axis=-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isinf(most), 0, most))
    total = weights.sum(axis=-1, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = (most + np.log(total))[..., 0]
    o = np.einsum("bhij,bhjd->bhid", weights / np.where(total == 0, 1, total), v)
    return o, lse


def difference(got, want):
    """Largest difference; infinite where one is -inf and the other is not."""
    if got.shape != want.shape or not np.array_equal(np.isinf(got), np.isinf(want)):
        return np.inf
    finite = np.isfinite(want)
    scaled = np.abs(got[finite] - want[finite]) / np.maximum(1, np.abs(want[finite]))
    return scaled.max(initial=0)


def main():
    worst = 0
    cases = json.loads((here / "manifest.json").read_text())
    print(f"NumPy {np.__version__}")
    for case in cases:
        q, k, v = (load(case["name"], t) for t in "qkv")
        assert q.dtype == (np.float16 if case["dtype"] == "f16" else np.float32)
        assert q.shape == (case["b"], case["hq"], case["sq"], case["head_dim"])
        assert k.shape == (case["b"], case["hkv"], case["sk"], case["head_dim"])
        assert v.shape == (case["b"], case["hkv"], case["sk"], case["head_dim_v"])
        if case["dtype"] == "bf16":  # float32 files, rounded to the upper half
            assert all(not (x.view(np.uint32) & 0xFFFF).any() for x in (q, k, v))
        o, lse = attention(case, *(x.astype(np.float64) for x in (q, k, v)))
        do, dl = difference(o, load(case["name"], "o")), difference(lse, load(case["name"], "lse"))
        worst = max(worst, do, dl)
        empty = int(np.isneginf(lse).sum())
        print(f"{case['name']:24} O {do:.1e}  LSE {dl:.1e}" + (f"  {empty} rows attend to nothing" if empty else ""))
    print(f"{len(cases)} cases, largest difference {worst:.1e}, limit {LIMIT:.0e}: {'ok' if worst <= LIMIT else 'FAIL'}")
    return 0 if worst <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
