#!/usr/bin/env python3
"""Writes golden gradients of attention with NumPy, in float64.

Usage: python3 make.py [-check]

Without -check it writes manifest.json and <case>.npz. With -check it computes the
cases again and compares the gradients with the files. Both check the
gradients by complex steps: the derivative of the loss sum(O dO) + sum(LSE dLSE) along
random directions of every input is the imaginary part of the loss at x + 1e-30 i u.

The program shares nothing with the library. It forms the whole matrix of scores and
multiplies by the whole Jacobian of the softmax.
"""
import json
import pathlib
import sys
import zlib

import numpy as np

here = pathlib.Path(__file__).resolve().parent
LIMIT = 1e-12  # of the larger of 1 and the value


def case(name, dtype, d, **more):
    c = dict(name=name, dtype=dtype, head_dim=d, head_dim_v=d, causal="none", align="none", window=None, softcap=0.0,
             scale=None, b=1, hq=2, hkv=2, sq=16, sk=16, cu_q=None, cu_k=None, used_q=None, used_k=None,
             block_q=0, block_k=0)
    # Inputs that a case may have: a type and a shape of the bias, a shape of the mask and of the bitmap.
    c["inputs"] = dict(dlse=True, alibi=False, sinks=False, bias=None, mask=None, blocks=None)
    for key, value in more.items():
        (c["inputs"] if key in c["inputs"] else c)[key] = value
    return c


CASES = [
    case("f16-d32", "f16", 32, b=2, hq=1, hkv=1, sq=19, sk=25, dlse=False),
    case("f16-d64-grouped-bottom-right", "f16", 64, causal="bottom-right", hq=4, hkv=2, sq=7, sk=17),
    case("bf16-d40-grouped-top-left", "bf16", 40, causal="top-left", hq=3, hkv=1, sq=17, sk=10, dlse=False),
    case("f32-d16-empty-rows", "f32", 16, causal="bottom-right", b=2, sq=26, sk=11),
    case("f16-d192v128", "f16", 192, head_dim_v=128, causal="bottom-right", hq=2, hkv=1, sq=5, sk=8),
    case("bf16-d32-window", "bf16", 32, causal="bottom-right", window=[5, -1], sq=18, sk=31, hkv=1),
    case("f32-d12-window-both-sides", "f32", 12, align="top-left", window=[4, 3], sq=33, sk=21, dlse=False),
    case("f32-d24-softcap", "f32", 24, softcap=1.5, scale=0.5, causal="top-left", sq=20, sk=20),
    case("f16-d24-alibi-sinks", "f16", 24, causal="bottom-right", hq=4, hkv=2, sq=14, sk=25, alibi=True, sinks=True),
    case("f32-d20-bias-per-head", "f32", 20, b=2, sq=13, sk=22, bias=["f32", 1, 2, 1]),
    case("bf16-d16-bias-per-batch", "bf16", 16, b=2, hq=4, sq=11, sk=15, bias=["f16", 2, 1, 11], causal="top-left"),
    case("bf16-d16-mask", "bf16", 16, b=2, sq=12, sk=23, mask=[2, 1, 12], sinks=True),
    case("f16-d16-blocks", "f16", 16, sq=40, sk=70, blocks=[1, 2], block_q=16, block_k=16),
    case("f32-d16-packed", "f32", 16, causal="bottom-right", b=4, hq=4, hkv=2, sq=12, sk=20, sinks=True,
         cu_q=[0, 5, 5, 17, 26], cu_k=[0, 9, 13, 33, 37]),
    case("bf16-d8v24-lengths", "bf16", 8, head_dim_v=24, causal="top-left", b=3, sq=14, sk=18, used_q=[14, 3, 9],
         used_k=[18, 7, 0], bias=["bf16", 3, 2, 14]),
    case("f32-d16v12-all-options", "f32", 16, head_dim_v=12, causal="bottom-right", window=[9, -1], softcap=2.5, scale=0.75,
         b=2, hq=4, hkv=2, sq=15, sk=22, alibi=True, sinks=True, bias=["f32", 1, 4, 15], mask=[2, 4, 1]),
]


def stored(x, dtype):
    """x rounded to a storage type; bf16 is stored as float32."""
    if dtype == "bf16":
        bits = np.asarray(x, np.float32).view(np.uint32).astype(np.uint64)
        bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
        return bits.astype(np.uint32).view(np.float32)
    return np.asarray(x, np.float16 if dtype == "f16" else np.float32)


def make_inputs(c):
    rng = np.random.Generator(np.random.PCG64(zlib.crc32(c["name"].encode())))
    batches_q, rows = (1, c["cu_q"][-1]) if c["cu_q"] else (c["b"], c["sq"])
    batches_k, keys = (1, c["cu_k"][-1]) if c["cu_k"] else (c["b"], c["sk"])
    has, x = c["inputs"], {}
    for name, shape in {
        "q": (batches_q, c["hq"], rows, c["head_dim"]),
        "k": (batches_k, c["hkv"], keys, c["head_dim"]),
        "v": (batches_k, c["hkv"], keys, c["head_dim_v"]),
        "do": (batches_q, c["hq"], rows, c["head_dim_v"]),
    }.items():
        x[name] = stored(rng.standard_normal(shape), c["dtype"])
    if has["dlse"]:
        x["dlse"] = stored(rng.standard_normal((batches_q, c["hq"], rows)), "f32")
    if has["alibi"]:
        x["alibi"] = stored(rng.uniform(0, 0.5, c["hq"]), "f32")
    if has["sinks"]:
        x["sinks"] = stored(rng.standard_normal(c["hq"]), "f32")
    if has["bias"]:
        dtype, *shape = has["bias"]
        x["bias"] = stored(rng.standard_normal((*shape, c["sk"])), dtype)
    if has["mask"]:
        x["mask"] = (rng.random((*has["mask"], c["sk"])) < 0.6).astype(np.uint8)
        x["mask"][0, 0, -1] = 0  # rows with no key
    if has["blocks"]:
        blocks_q, blocks_k = -(-c["sq"] // c["block_q"]), -(-c["sk"] // c["block_k"])
        x["blocks"] = (rng.random((*has["blocks"], blocks_q, blocks_k)) < 0.6).astype(np.uint8)
        x["blocks"][0, 0, 1] = 0
    return x


def sequences(c):
    """Of each sequence: its batch in Q, its rows there, its batch in K, its keys there."""
    for b in range(c["b"]):
        bq, first_q, n_q = (0, c["cu_q"][b], c["cu_q"][b + 1] - c["cu_q"][b]) if c["cu_q"] else (b, 0, c["sq"])
        bk, first_k, n_k = (0, c["cu_k"][b], c["cu_k"][b + 1] - c["cu_k"][b]) if c["cu_k"] else (b, 0, c["sk"])
        n_q = min(n_q, c["used_q"][b]) if c["used_q"] else n_q
        n_k = min(n_k, c["used_k"][b]) if c["used_k"] else n_k
        yield b, bq, slice(first_q, first_q + n_q), bk, slice(first_k, first_k + n_k)


def sub_matrix(x, b, h, rows, keys):
    """The slice of a bias or mask [Batches, Heads, Rows, Sk] for a sequence and head, as [rows or 1, keys]."""
    x = x[b if x.shape[0] > 1 else 0, h if x.shape[1] > 1 else 0]
    return x[:rows if x.shape[0] > 1 else 1, :keys]


def positions(c, n_q, n_k):
    """Position of every row among the keys, and every key."""
    align = c["align"] if c["causal"] == "none" else c["causal"]
    shift = n_k - n_q if align == "bottom-right" else 0
    return np.arange(n_q)[:, None] + shift, np.arange(n_k)[None, :]


def visible(c, x, b, h, n_q, n_k):
    at, key = positions(c, n_q, n_k)
    see = np.ones((n_q, n_k), bool)
    if c["causal"] != "none":
        see &= key <= at
    left, right = c["window"] or (-1, -1)
    if left >= 0:
        see &= key >= at - left
    if right >= 0:
        see &= key <= at + right
    if "mask" in x:
        see &= sub_matrix(x["mask"], b, h, n_q, n_k) != 0
    if "blocks" in x:
        of = x["blocks"][b if x["blocks"].shape[0] > 1 else 0, h if x["blocks"].shape[1] > 1 else 0]
        see &= np.kron(of, np.ones((c["block_q"], c["block_k"])))[:n_q, :n_k] != 0
    return see


def head(c, x, b, bq, rows, bk, keys, h):
    """P of one sequence and head with the sink as a last column, LSE, and the scores before
    and after the softcap. Works on complex inputs."""
    kv = h // (c["hq"] // c["hkv"])
    q, k = x["q"][bq, h, rows], x["k"][bk, kv, keys]
    products = scale(c) * (q @ k.T)
    scores = products
    if c["softcap"]:
        scores = c["softcap"] * np.tanh(products / c["softcap"])
    if "bias" in x:
        scores = scores + sub_matrix(x["bias"], b, h, *products.shape)
    if "alibi" in x:
        at, key = positions(c, *products.shape)
        scores = scores - x["alibi"][h] * np.abs(at - key)
    see = visible(c, x, b, h, *products.shape)
    sink = np.full((len(q), 1), x["sinks"][h] if "sinks" in x else -np.inf)
    logits = np.concatenate([scores, sink], axis=1)
    see = np.concatenate([see, np.full((len(q), 1), "sinks" in x)], axis=1)
    most = np.where(see, logits.real, -np.inf).max(axis=1, keepdims=True)
    most = np.where(np.isinf(most), 0, most)
    weights = np.where(see, np.exp(np.where(see, logits, most) - most), 0)
    total = weights.sum(axis=1, keepdims=True)
    empty = total == 0
    p = weights / np.where(empty, 1, total)
    lse = np.where(empty, -np.inf, most + np.log(np.where(empty, 1, total)))[:, 0]
    return p, lse, products


def scale(c):
    # The scale is a float32 in the library, the default one included.
    return np.float64(np.float32(1 / np.sqrt(c["head_dim"]) if c["scale"] is None else c["scale"]))


def loss(c, x):
    total = 0
    for b, bq, rows, bk, keys in sequences(c):
        for h in range(c["hq"]):
            p, lse, _ = head(c, x, b, bq, rows, bk, keys, h)
            o = p[:, :-1] @ x["v"][bk, h // (c["hq"] // c["hkv"]), keys]
            total += (o * x["do"][bq, h, rows]).sum()
            if "dlse" in x:
                total += (np.where(np.isneginf(lse.real), 0, lse) * x["dlse"][bq, h, rows]).sum()
    return total


def attended(c, x):
    """Which rows attend to a key, which keys and which elements of the bias a row attends to.
    Every gradient of the others is exactly 0."""
    a = {"attended_" + name: np.zeros(x[name].shape[:-1] if name != "bias" else x[name].shape, np.uint8)
         for name in ("q", "k", "bias") if name in x}
    for b, bq, rows, bk, keys in sequences(c):
        for h in range(c["hq"]):
            see = visible(c, x, b, h, rows.stop - rows.start, keys.stop - keys.start)
            a["attended_q"][bq, h, rows] |= see.any(axis=1)
            a["attended_k"][bk, h // (c["hq"] // c["hkv"]), keys] |= see.any(axis=0)
            if "bias" in x:
                of = sub_matrix(a["attended_bias"], b, h, *see.shape)
                of |= see if len(of) == len(see) else see.any(axis=0)
    return a


def gradients(c, x):
    g = {"d" + name: np.zeros(x[name].shape) for name in ("q", "k", "v", "bias", "sinks") if name in x}
    for b, bq, rows, bk, keys in sequences(c):
        for h in range(c["hq"]):
            kv = h // (c["hq"] // c["hkv"])
            p, lse, products = head(c, x, b, bq, rows, bk, keys, h)
            d_o = x["do"][bq, h, rows]
            # The row of O is a function of P, and LSE one of the logits, whose derivative is P.
            # The sink's column of P has no value.
            d_p = np.concatenate([d_o @ x["v"][bk, kv, keys].T, np.zeros((len(p), 1))], axis=1)
            jacobian = np.eye(p.shape[1]) * p[:, :, None] - p[:, :, None] * p[:, None, :]
            d_logits = np.einsum("ijk,ik->ij", jacobian, d_p)
            if "dlse" in x:
                d_logits += x["dlse"][bq, h, rows][:, None] * p
            g["dv"][bk, kv, keys] += p[:, :-1].T @ d_o
            d_scores = d_logits[:, :-1]
            if "bias" in x:
                of = sub_matrix(g["dbias"], b, h, *d_scores.shape)
                of += d_scores if len(of) == len(d_scores) else d_scores.sum(axis=0)
            if "sinks" in x:
                g["dsinks"][h] += d_logits[:, -1].sum()
            if c["softcap"]:
                d_scores = d_scores * (1 - np.tanh(products / c["softcap"]) ** 2)
            g["dq"][bq, h, rows] += scale(c) * d_scores @ x["k"][bk, kv, keys]
            g["dk"][bk, kv, keys] += scale(c) * d_scores.T @ x["q"][bq, h, rows]
    return g


def worst(got, want):
    return (np.abs(got - want) / np.maximum(1, np.abs(want))).max(initial=0)


def complex_steps(c, x, g, directions=16):
    """Largest error of the gradients along random directions of each input."""
    rng, step, error = np.random.Generator(np.random.PCG64(1)), 1e-30, 0
    for name in g:
        for _ in range(directions):
            u = rng.standard_normal(g[name].shape)
            moved = dict(x)
            moved[name[1:]] = x[name[1:]] + 1j * step * u
            error = max(error, worst((g[name] * u).sum(), loss(c, moved).imag / step))
    return error


def main():
    check = sys.argv[1:] == ["-check"]
    if not check and sys.argv[1:]:
        sys.exit(__doc__)
    largest = 0
    print(f"NumPy {np.__version__}")
    for c in CASES:
        files = make_inputs(c)
        x = {name: v if v.dtype == np.uint8 else v.astype(np.float64) for name, v in files.items()}
        g = gradients(c, x)
        files.update(attended(c, x))
        error = complex_steps(c, x, g)
        line = f"{c['name']:30} complex steps {error:.1e}"
        if check:
            old = np.load(here / f"{c['name']}.npz", allow_pickle=False)
            assert set(old.files) == set(files) | set(g)
            assert all(old[name].dtype == v.dtype and np.array_equal(old[name], v) for name, v in files.items())
            off = max(worst(old[name], v) for name, v in g.items())
            line += f"  files {off:.1e}"
            error = max(error, off)
        else:
            np.savez_compressed(here / f"{c['name']}.npz", **files, **g)
        print(line)
        largest = max(largest, error)
    if not check:
        manifest = [{**c, "bias_dtype": (c["inputs"]["bias"] or [""])[0]} for c in CASES]
        for c in manifest:
            del c["inputs"]
        lines = ",\n".join("  " + json.dumps(c) for c in manifest)
        (here / "manifest.json").write_text(f"[\n{lines}\n]\n")
    print(f"{len(CASES)} cases, largest error {largest:.1e}, limit {LIMIT:.0e}: {'ok' if largest <= LIMIT else 'FAIL'}")
    return 0 if largest <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
