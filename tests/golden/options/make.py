#!/usr/bin/env python3
"""Writes golden outputs and gradients of every option, alone and in pairs, with NumPy in float64.

Usage: python3 make.py [-check]

Without -check it writes cases.json and outputs.f32. With -check it computes the cases again, compares them
with the files and writes nothing. Both check the gradients by complex steps: the derivative of the loss
sum(O dO) + sum(LSE dLSE) along random directions of every input is the imaginary part of the loss at
x + 1e-30 i u.

The program follows the text of package attention's documentation, a row at a time, and shares nothing with
the library. Inputs are not stored: each is a hash of its case, its tensor and the number of the element, which a
test in Go computes too. outputs.f32 has the outputs of all cases one after the other, rounded to float32,
little-endian; cases.json says where each begins.
"""
import itertools
import json
import pathlib
import sys

import numpy as np

here = pathlib.Path(__file__).resolve().parent
LIMIT = 1e-12  # of complex steps, of the larger of 1 and the value

# ---- the options, their pairs, and the pairs that are left out ----

# cu and used are the two kinds of varlen. Types of K and V are SCALED, which have separate scales, and blocks, which
# have their own: NIBBLES, with two codes in a byte, and q8_0.
SCALED = ["int8", "fp8", "fp8-e5m2"]
# The number of each code, the power of two of the scales' unit, and whether a minimum is added.
NIBBLES = {
    "q4_0": (range(-8, 8), -9, False),
    "q4_1": (range(16), -9, True),
    "q5_0": (range(-16, 16), -10, False),
    "q5_1": (range(32), -10, True),
    "iq4_nl": ([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], -13, False),
}
OPTIONS = ["cu", "used", "window", "softcap", "alibi", "bias", "mask", "blocks", "sparse", "pages", "scaled", "blocked", "sinks", "dropout", "lse"]

PAIRS = """
cu used      cu window     cu alibi       cu mask       cu dropout     cu scaled     cu lse
used pages   used blocks   used sparse    used sinks    used blocked
window alibi window pages  window sparse  window softcap
softcap bias softcap alibi softcap dropout softcap blocked
alibi bias   alibi pages
bias mask    bias sparse   bias lse
mask sinks   mask dropout  mask blocked
blocks pages blocks scaled blocks dropout blocks lse
sparse pages sparse scaled
pages scaled pages blocked
scaled lse   blocked sinks
sinks lse    sinks dropout
"""

LEFT_OUT = {
    "refused: a call has at most one of mask, blocks and sparse tokens": "mask blocks, mask sparse, blocks sparse",
    "refused: dropout is for training, and quantized K and V have no gradients": "scaled dropout, blocked dropout",
    "K and V have one type": "scaled blocked",
    "the other kind of varlen is there with the partner": """used window, used alibi, used mask, used dropout, used scaled, used lse,
        cu pages, cu blocks, cu sinks, cu blocked, cu sparse""",
    "a bias has the index of a mask, which is there with the partner": "cu bias, used bias, bias sinks, bias dropout, bias blocked",
    "one chooses keys, the other changes the scores of those that are chosen: they have no index in common": """window bias,
        cu softcap, used softcap, softcap mask, softcap blocks, softcap sparse, bias blocks, alibi mask, alibi blocks, alibi sparse""",
    "what chooses keys is one conjunction, of which window sparse and the pairs with varlen are there": "window mask, window blocks",
    "K and V are read by the number of the key: another storage is there with the partner, or a like partner with the storage": """
        window scaled, window blocked, alibi scaled, alibi blocked, mask pages, mask scaled, blocks blocked, sparse blocked, bias pages, bias scaled""",
    "K and V are read before the scores, and the partner comes after them": """softcap pages, softcap scaled, pages sinks, pages lse,
        pages dropout, scaled sinks, blocked lse""",
    "one comes after the scores, whatever made them": """alibi sinks, alibi dropout, alibi lse, softcap sinks, softcap lse, window sinks,
        window dropout, window lse, blocks sinks, sparse sinks, sparse dropout, sparse lse, mask lse, dropout lse""",
}


def pair(text):
    return tuple(sorted(text.split(), key=OPTIONS.index))


def pairs():
    words = PAIRS.split()
    return [pair(" ".join(words[i:i + 2])) for i in range(0, len(words), 2)]


def check_pairs():
    here_, out = pairs(), [pair(p) for text in LEFT_OUT.values() for p in text.split(",")]
    everything = set(itertools.combinations(OPTIONS, 2))
    assert len(here_) == len(set(here_)) == 40, len(here_)
    assert len(out) == len(set(out)), [p for p in out if out.count(p) > 1]
    assert not set(here_) & set(out), set(here_) & set(out)
    assert everything == set(here_) | set(out), everything ^ (set(here_) | set(out))
    for o in OPTIONS:
        assert sum(o in p for p in here_) >= 5, o


# ---- the cases ----


def cases():
    alone = [("plain",), ("cu",), ("used",), ("window",), ("softcap",), ("alibi",), ("bias",), ("mask",), ("blocks",), ("sparse",),
             ("pages",), ("int8",), ("fp8",), ("q8_0",), ("q4_0",), ("sinks",), ("dropout",), ("lse",)]
    later = [("q4_1",), ("q5_0",), ("q5_1",), ("iq4_nl",), ("fp8-e5m2",), ("topk",), ("topk", "cu"), ("topk", "pages"),
             ("int8", "head"), ("fp8", "head", "pages"), ("fp8-e5m2", "tensor"), ("int8", "tensor", "cu")]
    return [case(i, names) for i, names in enumerate(alone + pairs() + later)]


def case(number, names):
    """A case of some options. The number chooses what is not theirs: type, mask, broadcast dimensions."""
    c = dict(name="-".join(names), options=list(names), dtype=["f32", "f16", "bf16"][number % 3], head_dim=16, head_dim_v=8,
             causal=["none", "bottom-right", "top-left"][number // 3 % 3], align="none", window=None, softcap=0.0, scale=None, dropout=0.0,
             b=2, hq=4, hkv=2, sq=7, sk=19)
    names = set(names)
    one = lambda n, bit: n if number >> bit & 1 else 1
    if "cu" in names:  # sequence 1 has no rows
        c.update(b=3, sk=17, cu_q=[0, 4, 4, 11], cu_k=[0, 9, 13, 30])
        if "used" in names:
            c.update(used_q=[3, 0, 7], used_k=[8, 4, 12])
    elif "used" in names:  # sequence 2 has no keys; rows are aligned with the last of them
        c.update(b=3, used_q=[7, 5, 2], used_k=[19, 11, 0], causal="bottom-right")
    if "blocks" in names:
        c.update(b=1, sq=36, sk=50, block_q=16, block_k=16, blocks=[1, one(4, 0)])
        if "used" in names:
            c.update(b=2, used_q=[36, 20], used_k=[33, 50], blocks=[2, one(4, 0)])
    if "window" in names:
        c["window"] = [3, 2] if number & 1 else [5, -1]
    if names & {"window", "alibi"} and c["causal"] == "none":
        c["align"] = "bottom-right"
    if "softcap" in names:
        c["softcap"], c["scale"] = 1.5, 0.5
    if "dropout" in names:
        c.update(dropout=0.25, dropout_seed=0x123456789ABCDEF0 + number, dropout_offset=number)
    if "bias" in names:
        c.update(bias=[one(c["b"], 0), one(4, 1), one(c["sq"], 2)], bias_dtype=["f32", "f16", "bf16"][number // 2 % 3])
        if len(names) == 1:
            c["bias"] = [2, 4, 7]
    if "mask" in names:
        c["mask"] = [one(c["b"], 1), one(4, 2), c["sq"]]
    for kv in (*SCALED, "q8_0", *NIBBLES):
        if kv in names:
            c["kv"] = kv
    if "scaled" in names:
        c["kv"] = ["int8", "fp8"][number & 1]
    if "blocked" in names:
        c["kv"] = ["q8_0", "q4_0"][number & 1]
    if "kv" in c and c["kv"] not in SCALED:
        c.update(head_dim=64, head_dim_v=32)
    elif "kv" in c and number & 2:
        c["kv_block"] = 4
    if names & {"head", "tensor"}:  # who shares a scale; -1 and -2 in Config.KVBlock
        c["kv_block"] = -1 if "head" in names else -2
    if "pages" in names:  # pages in no order; one is shared by two sequences, and one has no sequence
        n = -(-c["sk"] // 5)
        order = np.argsort(hashed(c, "order", c["b"] * n), kind="stable")
        table = (order.reshape(c["b"], n) + 1).tolist()
        if c["b"] > 1:
            table[1][1] = table[0][1]
        c.update(page_size=5, page_count=c["b"] * n + 1, table=table)
    if "sparse" in names:  # tokens in no order, some twice, one that does not exist
        lists = [(hashed(c, f"tokens{i}", 9 + 2 * i) % np.uint64(c["sk"])).tolist() for i in range(c["b"] * c["hkv"])]
        lists[0] += [c["sk"] + 3]
        lists[1] += lists[1][:2]
        c.update(tokens=lists)
    if "topk" in names:  # for each row and KV head 7 tokens in no order, some twice, some that do not exist, and two empty slots
        rows = c["cu_q"][-1] if "cu_q" in c else c["b"] * c["sq"]
        n = rows * c["hkv"]
        lists = (hashed(c, "topk", 7 * n) % np.uint64(c["sk"] + 2)).astype(np.int64).reshape(n, 7)
        lists[np.arange(n), np.arange(n) % 7] = -1
        lists[np.arange(n), np.arange(n) % 5] = -1
        lists[3] = -1  # a row without keys
        c.update(top_k=7, tokens=lists.tolist())
    for tensor in ("alibi", "sinks"):
        c["has_" + tensor] = tensor in names
    c["has_dlse"] = "lse" in names
    c["has_gradients"] = "kv" not in c and not names & {"pages", "topk"}
    return c


# ---- inputs: a hash of case, tensor and element ----


def hashed(c, tensor, n):
    """n words of SplitMix64 whose seed is the FNV-1a hash of "case/tensor"."""
    seed = 0xCBF29CE484222325
    for byte in f"{c['name']}/{tensor}".encode():
        seed = (seed ^ byte) * 0x100000001B3 % 2**64
    with np.errstate(over="ignore"):
        z = np.uint64(seed) + np.arange(1, n + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ z >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ z >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return z ^ z >> np.uint64(31)


def numbers(c, tensor, shape, dtype):
    """Between -2 and 2, with so many bits that the type has them exactly."""
    bits = {"f32": 23, "f16": 10, "bf16": 7}[dtype]
    odd = 2 * (hashed(c, tensor, int(np.prod(shape))) >> np.uint64(64 - bits)).astype(np.float64) + 1 - 2.0**bits
    return (odd * 2.0**(1 - bits)).reshape(shape)


def small(c, tensor, shape, unit):
    """64 to 127 units."""
    return ((hashed(c, tensor, int(np.prod(shape))) >> np.uint64(58)).astype(np.float64) + 64).reshape(shape) * unit


def make_inputs(c):
    rows = (1, c["cu_q"][-1]) if "cu_q" in c else (c["b"], c["sq"])
    keys = (1, c["cu_k"][-1]) if "cu_k" in c else (c["b"], c["sk"])
    if "table" in c:
        keys = (c["page_count"], c["page_size"])
    x = {"q": numbers(c, "q", (rows[0], c["hq"], rows[1], c["head_dim"]), c["dtype"])}
    for name, dim in (("k", c["head_dim"]), ("v", c["head_dim_v"])):
        shape = (keys[0], c["hkv"], keys[1], dim)
        x[name] = stored(c, name, shape) if "kv" in c else numbers(c, name, shape, c["dtype"])
    if c["has_gradients"]:
        x["do"] = numbers(c, "do", (rows[0], c["hq"], rows[1], c["head_dim_v"]), c["dtype"])
    if c["has_dlse"]:
        x["dlse"] = numbers(c, "dlse", (rows[0], c["hq"], rows[1]), "f32")
    if c["has_alibi"]:
        x["alibi"] = np.abs(numbers(c, "alibi", (c["hq"],), "f32")) / 4
    if c["has_sinks"]:
        x["sinks"] = numbers(c, "sinks", (c["hq"],), "f32")
    if "bias" in c:
        shape = (*c["bias"], c["sk"])
        x["bias"] = numbers(c, "bias", shape, c["bias_dtype"])
        x["bias"][hashed(c, "away", int(np.prod(shape))).reshape(shape) % np.uint64(32) == 0] = -np.inf
    if "mask" in c:
        x["mask"] = bits(c, "mask", (*c["mask"], c["sk"]))
        x["mask"][0, 0, -1] = 0  # a row without keys
    if "blocks" in c:
        x["blocks"] = bits(c, "blocks", (*c["blocks"], -(-c["sq"] // c["block_q"]), -(-c["sk"] // c["block_k"])))
        x["blocks"][0, 0, 1] = 0
    return x


def bits(c, tensor, shape):
    return (hashed(c, tensor, int(np.prod(shape))).reshape(shape) % np.uint64(8) < 5).astype(np.uint8)


def stored(c, name, shape):
    """K or V of a quantized type, as the numbers that its bytes stand for."""
    batches, heads, keys, dim = shape
    if c["kv"] not in SCALED:
        blocks = (batches, heads, keys, dim // 32)
        numbers, power, minimum = NIBBLES.get(c["kv"], (None, -13, False))
        unit = small(c, name + "scale", (*blocks, 1), 2.0**power)
        if c["kv"] == "q8_0":
            whole = hashed(c, name, batches * heads * keys * dim).astype(np.uint8).view(np.int8).reshape(*blocks, 32)
            return (whole * unit).reshape(shape)
        # the code of element i in the low half of byte i, that of element i+16 in the high half; the fifth bit of element i
        # is bit i of a word
        byte = hashed(c, name, batches * heads * keys * dim // 2).astype(np.uint8).reshape(*blocks, 16)
        code = np.concatenate([byte & 15, byte >> 4], axis=-1).astype(np.int64)
        if len(numbers) == 32:
            word = hashed(c, name + "fifth", int(np.prod(blocks))).reshape(*blocks, 1)
            code += 16 * (word >> np.arange(32, dtype=np.uint64) & np.uint64(1)).astype(np.int64)
        value = np.array(numbers)[code] * unit
        if minimum:
            value -= small(c, name + "minimum", (*blocks, 1), 2.0**power * len(numbers) / 2)
        return value.reshape(shape)
    byte = hashed(c, name, batches * heads * keys * dim).astype(np.uint8).reshape(shape)
    if c["kv"] == "int8":
        value, unit = byte.view(np.int8).astype(np.float64), 2.0**-13
    else:  # numbers up to 2^5; Inf and NaN are not among them
        bits, bias, end = (3, 7, 0x60) if c["kv"] == "fp8" else (2, 15, 0x50)
        byte = byte & 0x80 | byte % end
        sign, exponent, fraction = byte >> 7, ((byte & 0x7F) >> bits).astype(np.float64), (byte & 2**bits - 1) / 2.0**bits
        value = np.where(exponent == 0, fraction * 2.0**(1 - bias), (1 + fraction) * 2.0**(exponent - bias)) * np.where(sign == 1, -1, 1)
        unit = 2.0**-11
    block = c.get("kv_block", 1)
    if block < 0:  # a scale for each head of all batches, or one
        return value * small(c, name + "scale", (1, heads if block == -1 else 1, 1, 1), unit)
    scales = small(c, name + "scale", (batches, heads, -(-keys // block)), unit)
    return value * np.repeat(scales, block, axis=2)[:, :, :keys, None]


# ---- the contract: what a row attends to, its scores, its softmax ----


class Sequence:
    """Sequence b of a call: where its rows and keys are, and how many."""

    def __init__(self, c, b):
        self.b = b
        self.batch_q, self.first_q, self.rows = b, 0, c["sq"]
        self.batch_k, self.first_k, self.keys = b, 0, c["sk"]
        if "cu_q" in c:
            self.batch_q, self.first_q, self.rows = 0, c["cu_q"][b], c["cu_q"][b + 1] - c["cu_q"][b]
        if "cu_k" in c:
            self.batch_k, self.first_k, self.keys = 0, c["cu_k"][b], c["cu_k"][b + 1] - c["cu_k"][b]
        if "used_q" in c:
            self.rows = min(self.rows, c["used_q"][b])
        if "used_k" in c:
            self.keys = min(self.keys, c["used_k"][b])
        self.table, self.page = (c["table"][b], c["page_size"]) if "table" in c else (None, 0)
        align = c["align"] if c["causal"] == "none" else c["causal"]
        self.offset = self.keys - self.rows if align == "bottom-right" else 0

    def key(self, j):
        """Where key j is in K and V: index and row."""
        return (self.table[j // self.page], j % self.page) if self.table else (self.batch_k, self.first_k + j)


def at(x, b, h, r):
    """Row r of head h of batch b of a tensor whose dimensions may be 1, for all."""
    return x[b if x.shape[0] > 1 else 0, h if x.shape[1] > 1 else 0, r if x.shape[2] > 1 else 0]


def times(c, x, s, h, r):
    """How often row r of query head h attends to each key of the sequence."""
    n = np.zeros(s.keys, np.int64)
    i = r + s.offset
    left, right = c["window"] or (-1, -1)
    if "tokens" in c:
        owner = s.batch_q * c["sq"] + s.first_q + r if "top_k" in c else s.b
        for t in c["tokens"][owner * c["hkv"] + h // (c["hq"] // c["hkv"])]:
            if 0 <= t < s.keys:
                n[t] += 1
    else:
        n[:] = 1
    for j in range(s.keys):
        see = c["causal"] == "none" or j <= i
        see = see and (left < 0 or i - left <= j) and (right < 0 or j <= i + right)
        if "mask" in x:
            see = see and at(x["mask"], s.b, h, r)[j] != 0
        if "blocks" in x:
            see = see and at(x["blocks"], s.b, h, r // c["block_q"])[j // c["block_k"]] != 0
        n[j] *= see
    return n


def philox(counter, key):
    """Philox4x32-10 of Salmon et al. (2011), in Python's integers."""
    for _ in range(10):
        a, b = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [b >> 32 ^ counter[1] ^ key[0], b & 0xFFFFFFFF, a >> 32 ^ counter[3] ^ key[1], a & 0xFFFFFFFF]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return counter


def kept(c, s, h, r):
    """The factor of each weight: 0, or 1 / (1 - dropout)."""
    p = float(np.float32(c["dropout"]))
    if p == 0:
        return np.ones(s.keys)
    key = [c["dropout_seed"] & 0xFFFFFFFF, c["dropout_seed"] >> 32]
    words = [w for quad in range(-(-s.keys // 4)) for w in philox([quad, r, s.b * c["hq"] + h, c["dropout_offset"]], key)]
    return (np.array(words[:s.keys]) >= p * 2**32) / (1 - p)


class Row:
    """A row r of query head h: its softmax, O and LSE. Works on complex inputs."""

    def __init__(self, c, x, s, h, r):
        kv = h // (c["hq"] // c["hkv"])
        places = [s.key(j) for j in range(s.keys)]
        self.n = times(c, x, s, h, r)
        self.q = x["q"][s.batch_q, h, s.first_q + r]
        self.k = np.array([x["k"][b, kv, t] for b, t in places]).reshape(s.keys, c["head_dim"])
        self.v = np.array([x["v"][b, kv, t] for b, t in places]).reshape(s.keys, c["head_dim_v"])
        self.keep = kept(c, s, h, r)
        self.scaled = scale(c) * (self.k @ self.q)
        score = self.scaled
        if c["softcap"]:
            score = c["softcap"] * np.tanh(score / c["softcap"])
        if "bias" in x:
            score = score + at(x["bias"], s.b, h, r)[:s.keys]
        if "alibi" in x:
            score = score - x["alibi"][h] * np.abs(r + s.offset - np.arange(s.keys))
        weight = self.n * np.where(self.n > 0, np.exp(np.where(self.n > 0, score, 0)), 0)
        total = weight.sum()
        if "sinks" in x:
            total = total + np.exp(x["sinks"][h])
        self.empty = total == 0
        self.p = weight / (1 if self.empty else total)
        self.sink = np.exp(x["sinks"][h]) / total if "sinks" in x else 0
        self.lse = -np.inf if self.empty else np.log(total)
        self.o = (self.p * self.keep) @ self.v


def scale(c):
    # A float32 in the library, the default one too.
    return float(np.float32(1 / np.sqrt(c["head_dim"]) if c["scale"] is None else c["scale"]))


def rows_of(c):
    for b in range(c["b"]):
        s = Sequence(c, b)
        for h in range(c["hq"]):
            for r in range(s.rows):
                yield s, h, r


def forward(c, x):
    """O and LSE, packed as Q is. Rows past the end of a sequence have O = 0 and LSE = -Inf."""
    o = np.zeros((*x["q"].shape[:3], c["head_dim_v"]))
    lse = np.full(x["q"].shape[:3], -np.inf)
    for s, h, r in rows_of(c):
        row = Row(c, x, s, h, r)
        o[s.batch_q, h, s.first_q + r], lse[s.batch_q, h, s.first_q + r] = row.o, row.lse
    return {"o": o, "lse": lse}


def loss(c, x):
    total = 0
    for s, h, r in rows_of(c):
        row = Row(c, x, s, h, r)
        total = total + row.o @ x["do"][s.batch_q, h, s.first_q + r]
        if "dlse" in x and not row.empty:
            total = total + row.lse * x["dlse"][s.batch_q, h, s.first_q + r]
    return total


def gradients(c, x):
    """With D the factors of dropout: dV = (P D)^T dO, dP = D dO V^T, delta = sum P dP, dS = P (dP - delta + dLSE)."""
    g = {"d" + name: np.zeros(x[name].shape) for name in ("q", "k", "v", "bias", "sinks") if name in x}
    for s, h, r in rows_of(c):
        row, kv = Row(c, x, s, h, r), h // (c["hq"] // c["hkv"])
        where = s.batch_q, h, s.first_q + r
        d_o = x["do"][where]
        d_lse = x["dlse"][where] if "dlse" in x else 0
        d_p = row.keep * (row.v @ d_o)
        delta = row.p @ d_p
        d_s = row.p * (d_p - delta + d_lse)
        if "bias" in x:
            at(g["dbias"], s.b, h, r)[:s.keys] += d_s
        if "sinks" in x:
            g["dsinks"][h] -= row.sink * (delta - d_lse)
        if c["softcap"]:
            d_s = d_s * (1 - np.tanh(row.scaled / c["softcap"])**2)
        g["dq"][where] += scale(c) * (d_s @ row.k)
        for j in range(s.keys):
            b, t = s.key(j)
            g["dk"][b, kv, t] += scale(c) * d_s[j] * row.q
            g["dv"][b, kv, t] += row.p[j] * row.keep[j] * d_o
    return g


# ---- files and checks ----


def worst(got, want):
    return (np.abs(got - want) / np.maximum(1, np.abs(want))).max(initial=0)


def complex_steps(c, x, g, directions=3):
    """Largest error of the gradients along random directions of each input."""
    rng, step, error = np.random.Generator(np.random.PCG64(1)), 1e-30, 0
    for name in g:
        for _ in range(directions):
            u = rng.standard_normal(g[name].shape)
            moved = dict(x)
            moved[name[1:]] = x[name[1:]] + 1j * step * u
            error = max(error, worst((g[name] * u).sum(), loss(c, moved).imag / step))
    return error


def same(a, b):
    """Equal, but for the last bit of a float32: another NumPy may sum in another order."""
    finite = np.isfinite(b)
    return np.array_equal(a[~finite], b[~finite]) and (np.abs(a[finite] - b[finite]) <= 2.0**-22 * np.abs(b[finite]) + 1e-12).all()


def main():
    check = sys.argv[1:] == ["-check"]
    if not check and sys.argv[1:]:
        sys.exit(__doc__)
    check_pairs()
    print(f"NumPy {np.__version__}")
    manifest, data, largest, bad = [], [], 0, 0
    old = np.fromfile(here / "outputs.f32", "<f4").astype(np.float64) if check else None
    at_ = 0
    for c in cases():
        x = make_inputs(c)
        out = forward(c, x)
        line = f"{c['name']:18} {c['dtype']:4}"
        if c["has_gradients"]:
            g = gradients(c, x)
            error = complex_steps(c, x, g)
            largest = max(largest, error)
            line += f"  complex steps {error:.1e}"
            out.update(g)
        c["outputs"] = {}
        for name, v in out.items():
            narrow = v.astype("<f4").ravel()
            c["outputs"][name] = dict(first=at_, shape=list(v.shape))
            if check and not same(narrow.astype(np.float64), old[at_:at_ + len(narrow)]):
                bad += 1
                line += f"  {name} DIFFERS"
            at_ += len(narrow)
            data.append(narrow)
        manifest.append(c)
        print(line)
    text = "[\n" + ",\n".join("  " + json.dumps(c) for c in manifest) + "\n]\n"
    if check:
        bad += len(old) != at_
        bad += (here / "cases.json").read_text() != text
    else:
        (here / "cases.json").write_text(text)
        np.concatenate(data).tofile(here / "outputs.f32")
    ok = largest <= LIMIT and not bad
    print(f"{len(manifest)} cases, {4 * at_} bytes, largest error {largest:.1e}, limit {LIMIT:.0e}" + (f", {bad} differences" if check else "") + f": {'ok' if ok else 'FAIL'}")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
