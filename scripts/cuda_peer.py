#!/usr/bin/env python3
"""cuda_peer.py check|bench [options]

The CUDA kernels of cudapath/kernels without the Go host: their launch tables are
read, the compiled modules loaded, and every entry point launched on PyTorch's
tensors. Needs Python 3.8, PyTorch and an NVIDIA GPU with its driver; no nvcc.

    cuda_peer.py check --family fa2 --level full     conformance, against float64
    cuda_peer.py bench --family fa2,fa3 --dims 64,128 --lengths 1024,4096
    cuda_peer.py bench --family fa2 --peers flash,cudnn

check compares with float64 by three rules at once (largest error, mean error,
NMSE, each against what plain attention in the storage type would do), and looks
for bits that change from run to run or by what masked slots and padding hold.
bench verifies, then times all kernels and PyTorch's backends in turns; the clock
settles first. Both print one line of JSON for each result; the exit code of
check is 1 when anything failed.
"""
import argparse
import ctypes
import gzip
import json
import math
import os
import random
import statistics
import subprocess
import sys
import time

import torch

HERE = os.path.dirname(os.path.abspath(__file__))
KERNELS = os.path.normpath(os.path.join(HERE, "..", "cudapath", "kernels"))
TYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}
LOG2E = 1.4426950408889634
NO_CAUSE = 2**31 - 1


class Driver:
    """The few calls of libcuda that PyTorch does not make for us."""

    def __init__(self):
        torch.zeros(1, device="cuda")  # makes the primary context current
        self.lib = ctypes.CDLL(os.environ.get("VKATTN_LIBCUDA", "libcuda.so.1"))

    def call(self, name, *arguments):
        code = getattr(self.lib, name)(*arguments)
        if code:
            text = ctypes.c_char_p()
            self.lib.cuGetErrorName(code, ctypes.byref(text))
            raise RuntimeError("%s: %s" % (name, (text.value or b"?").decode()))

    def module(self, image):
        handle = ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(handle), image)
        return handle

    def function(self, module, name, shared):
        handle = ctypes.c_void_p()
        self.call("cuModuleGetFunction", ctypes.byref(handle), module, name.encode())
        if shared > 48 * 1024:
            self.call("cuFuncSetAttribute", handle, 8, shared)
        return handle

    def launch(self, function, grid, threads, shared, parameters):
        pointers = (ctypes.c_void_p * len(parameters))(*[ctypes.addressof(p) for p in parameters])
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        self.call("cuLaunchKernel", function, *grid, threads, 1, 1, shared, stream, pointers, None)

    def tensor_map(self, t, dtype, dim, rows, box, swizzle):
        """A 4-D map (dim, row, head, batch) of tensor t, as [batch, head, row, dim] view."""
        raw = (ctypes.c_uint8 * (128 + 64))()
        start = -ctypes.addressof(raw) % 64
        aligned = (ctypes.c_uint8 * 128).from_buffer(raw, start)
        aligned.keep = raw
        size = t.element_size()
        dims = (ctypes.c_uint64 * 4)(dim, rows, t.shape[1], t.shape[0])
        # A dimension of length one may have any stride; the driver wants a sane one.
        strides = [t.stride(i) * size if t.shape[i] > 1 else max(t.stride(2), 8) * size for i in (2, 1, 0)]
        self.call("cuTensorMapEncodeTiled", ctypes.byref(aligned), {"f16": 6, "bf16": 9, "f32": 7}[dtype], 4,
                  ctypes.c_void_p(t.data_ptr()), dims, (ctypes.c_uint64 * 3)(*strides),
                  (ctypes.c_uint32 * 4)(*box), (ctypes.c_uint32 * 4)(1, 1, 1, 1), 0,
                  {0: 0, 32: 1, 64: 2, 128: 3}[swizzle], 3, 0)
        return aligned


class Tensor(ctypes.Structure):
    _fields_ = [("base", ctypes.c_uint64), ("batch", ctypes.c_int64), ("head", ctypes.c_int64), ("row", ctypes.c_int64)]


class Params(ctypes.Structure):
    """AttnParams of attn.h."""

    _fields_ = (
        [(n, Tensor) for n in "qkvo"]
        + [("lse", ctypes.c_uint64)]
        + [(n, ctypes.c_int32) for n in ("B", "Hq", "Hkv", "Sq", "Sk", "D", "Dv", "causal_offset")]
        + [(n, ctypes.c_float) for n in ("scale", "scale_log2", "unit_high", "unit_low")]
    )


assert ctypes.sizeof(Params) == 184


def f32(x):
    return ctypes.c_float(x).value


def factors(scale):
    """scale, scale_log2, unit_high, unit_low, as the host computes them."""
    scale = f32(scale)
    log2 = scale * LOG2E
    if abs(log2) < 2.0**-100:
        log2 = math.copysign(2.0**-100, log2)
    log2 = f32(log2)
    unit = abs(scale) / abs(log2)
    return scale, log2, f32(unit), f32(unit - f32(unit))


class Problem:
    """Inputs as views [batch, head, row, dim], and what is asked of them."""

    def __init__(self, q, k, v, causal="none", scale=None, layout="bhsd"):
        self.q, self.k, self.v, self.causal = q, k, v, causal
        self.B, self.Hq, self.Sq, self.D = q.shape
        self.Hkv, self.Sk, self.Dv = k.shape[1], k.shape[2], v.shape[3]
        self.scale = self.D**-0.5 if scale is None else scale
        self.dtype = {v: k for k, v in TYPES.items()}[q.dtype]
        self.layout = layout

    def offset(self):
        return {"none": NO_CAUSE, "top-left": 0, "bottom-right": self.Sk - self.Sq}[self.causal]

    def outputs(self):
        o = blank(self.layout, self.B, self.Hq, self.Sq, self.Dv, self.q.dtype)
        lse = torch.full((self.B, self.Hq, self.Sq), 7e7, device="cuda")
        return o, lse

    def cells(self):
        if self.causal == "none":
            return self.Sq * self.Sk
        r = torch.arange(self.Sq, dtype=torch.int64) + self.offset() + 1
        return int(r.clamp(0, self.Sk).sum())

    def flops(self):
        return 2.0 * self.B * self.Hq * (self.D + self.Dv) * self.cells()

    def name(self):
        return dict(dtype=self.dtype, b=self.B, hq=self.Hq, hkv=self.Hkv, sq=self.Sq, sk=self.Sk, d=self.D, dv=self.Dv,
                    causal=self.causal, layout=self.layout)


class Kernels:
    """The tables of a folder and what is loaded of its modules."""

    def __init__(self, folder, families, ptx=False):
        self.driver, self.folder, self.ptx = Driver(), folder, ptx
        self.sms = torch.cuda.get_device_properties(0).multi_processor_count
        self.entries, self.modules, self.functions = [], {}, {}
        for family in families:
            with open(os.path.join(folder, family + ".json")) as f:
                table = json.load(f)
            self.entries += table["kernels"] if isinstance(table, dict) else table

    def image(self, module):
        names = [module + ".ptx"] if self.ptx else [module + ".sm_90a.cubin", module + ".ptx"]
        for name in names:
            path = os.path.join(self.folder, "bin", name)
            if os.path.exists(path):
                return open(path, "rb").read() + b"\0"
            if os.path.exists(path + ".gz"):
                return gzip.open(path + ".gz").read() + b"\0"
        raise FileNotFoundError(module)

    def function(self, e):
        if e["entry"] not in self.functions:
            if e["module"] not in self.modules:
                self.modules[e["module"]] = self.driver.module(self.image(e["module"]))
            self.functions[e["entry"]] = self.driver.function(self.modules[e["module"]], e.get("symbol", e["entry"]), e["shared"])
        return self.functions[e["entry"]]

    def suits(self, e, p):
        """Whether entry e computes problem p; a table's smallest such bucket is the one to use."""
        if e["dtype"] != p.dtype or e["d"] < p.D or e["dv"] < p.Dv:
            return False
        if e["family"] == "ref":
            return True
        if e["causal"] != (p.causal != "none"):
            return False
        if e.get("any"):
            return True
        aligned = all(x % 8 == 0 for x in (p.D, p.Dv))
        for t in (p.q, p.k, p.v):
            aligned &= t.data_ptr() % 16 == 0 and all(t.stride(i) % 8 == 0 for i in (0, 1, 2))
        return aligned and p.layout != "odd"

    def find(self, family, p):
        fit = [e for e in self.entries if e["family"] == family and self.suits(e, p)]
        return min(fit, key=lambda e: (e["d"] + e["dv"], bool(e.get("any"))), default=None)

    def prepare(self, e, p, o, lse):
        """What launches entry e once."""
        x = Params()
        for name, t in (("q", p.q), ("k", p.k), ("v", p.v), ("o", o)):
            setattr(x, name, Tensor(t.data_ptr(), t.stride(0), t.stride(1), t.stride(2)))
        x.lse = lse.data_ptr() if lse is not None else 0
        x.B, x.Hq, x.Hkv, x.Sq, x.Sk, x.D, x.Dv = p.B, p.Hq, p.Hkv, p.Sq, p.Sk, p.D, p.Dv
        x.causal_offset = p.offset()
        x.scale, x.scale_log2, x.unit_high, x.unit_low = factors(p.scale)
        parameters = []
        tensors = {"q": (p.q, p.D, p.Sq), "k": (p.k, p.D, p.Sk), "v": (p.v, p.Dv, p.Sk), "o": (o, p.Dv, p.Sq)}
        for m in e.get("maps") or []:
            t, dim, rows = tensors[m["tensor"]]
            parameters.append(self.driver.tensor_map(t, p.dtype, dim, rows, m["box"], m["swizzle"]))
        parameters.append(x)
        blocks = -(-p.Sq // e["rows"])
        if e.get("grid", "rows,heads,batch") == "persistent":
            grid = (min(self.sms, blocks * p.Hq * p.B), 1, 1)
        else:
            sizes = {"rows": blocks, "heads": p.Hq, "batch": p.B}
            axes = [sizes[a] for a in e.get("grid", "rows,heads,batch").split(",")]
            grid = tuple(axes + [1] * (3 - len(axes)))
        function = self.function(e)
        return lambda: self.driver.launch(function, grid, e["threads"], e["shared"], parameters)

    def run(self, e, p):
        o, lse = p.outputs()
        self.prepare(e, p, o, lse)()
        torch.cuda.synchronize()
        return o, lse


# Tensors of a layout, as views [batch, head, row, dim].


def blank(layout, b, h, s, d, dtype, fill=float("nan")):
    """Memory of a layout, all of it `fill`; padding is what the view leaves out."""
    if layout == "bhsd":
        return torch.full((b, h, s, d), fill, device="cuda", dtype=dtype)
    if layout == "bshd":
        return torch.full((b, s, h, d), fill, device="cuda", dtype=dtype).transpose(1, 2)
    if layout == "padded":  # rows and heads further apart than they need to be
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


def report(**fields):
    print(json.dumps(fields), flush=True)


# check


def cases(level, dims):
    """(description of a problem, as keyword arguments of `build`)"""
    rng = random.Random(20)
    sizes = [(1, 1), (7, 1), (1, 7), (127, 129), (129, 127), (64, 64), (128, 128), (65, 191), (300, 1000), (1000, 300), (255, 513)]
    layouts = ["bhsd", "bshd", "padded", "odd"]
    for d, dv in dims:
        for sq, sk in {"full": sizes, "short": sizes[3:5] + sizes[8:10], "tiny": sizes[7:8]}[level]:
            for causal in ("none", "top-left", "bottom-right"):
                group = rng.choice([1, 2, 4])
                yield dict(b=rng.choice([1, 2]), hq=2 * group, hkv=2, sq=sq, sk=sk, d=d, dv=dv, causal=causal, layout=rng.choice(layouts))
    for d, dv in {"full": dims, "short": dims[:2], "tiny": []}[level]:
        for scale in (0.0, -0.3, 3.0, 1e-3):
            for causal in ("none", "bottom-right"):
                yield dict(b=1, hq=2, hkv=1, sq=200, sk=260, d=d, dv=dv, causal=causal, scale=scale, layout="bshd")


def build(dtype, b, hq, hkv, sq, sk, d, dv, causal, layout, scale=None):
    t = TYPES[dtype]
    return Problem(make(layout, b, hq, sq, d, t), make(layout, b, hkv, sk, d, t), make(layout, b, hkv, sk, dv, t),
                   causal, scale, layout)


def same(a, b):
    """Bit for bit, NaN included."""
    return all(bool((x.contiguous().view(torch.uint8) == y.contiguous().view(torch.uint8)).all()) for x, y in zip(a, b))


def check_one(kernels, family, p, extra):
    e = kernels.find(family, p)
    if e is None:
        return None
    o, lse = kernels.run(e, p)
    reason, worst = judge(p, o, lse)
    if reason is None:
        again = kernels.run(e, p)
        if not same((o, lse), again):
            reason = "bits differ from run to run"
    if reason is None and p.causal != "none":
        # Keys and values that a row does not attend to change: its bits must not.
        cut = random.Random(p.Sq * 131 + p.Sk).randrange(p.Sk)
        for poison in (float("nan"), float("inf"), 1e4):
            k, v = p.k.clone(), p.v.clone()
            k[:, :, cut:], v[:, :, cut:] = poison, poison
            spoilt = Problem(p.q, relaid(k, p.k), relaid(v, p.v), p.causal, p.scale, p.layout)
            rows = min(max(cut - p.offset(), 0), p.Sq)  # these attend to nothing from cut on
            o2, lse2 = kernels.run(e, spoilt)
            if not same((o[:, :, :rows], lse[:, :, :rows]), (o2[:, :, :rows], lse2[:, :, :rows])):
                reason = "masked slots holding %s change bits" % poison
                break
            if math.isnan(poison) and rows < p.Sq and not bool(o2[:, :, rows:].isnan().all()):
                reason = "a NaN that is attended to got lost"
                break
    report(kind="check", entry=e["entry"], ok=reason is None, reason=reason, scale=p.scale, **p.name(), **worst, **extra)
    return reason is None


def relaid(t, like):
    """t in memory laid out as like, everything else NaN."""
    out = torch.empty_strided(like.shape, like.stride(), device="cuda", dtype=like.dtype)
    flat = out.as_strided((sum((n - 1) * s for n, s in zip(like.shape, like.stride())) + 1,), (1,))
    flat.fill_(float("nan"))
    out.copy_(t)
    return out


def check(args):
    torch.manual_seed(1)
    kernels = Kernels(args.kernels, args.family, args.ptx)
    dims = [(int(x), int(y)) for x, _, y in (d.partition("x") if "x" in d else (d, "", d) for d in args.dims.split(","))]
    failed = passed = 0
    for family in args.family:
        for dtype in args.dtypes.split(","):
            for case in cases(args.level, dims):
                p = build(dtype, **case)
                r = check_one(kernels, family, p, {"family": family})
                failed += r is False
                passed += r is True
    report(kind="summary", passed=passed, failed=failed)
    return 1 if failed or not passed else 0


# bench


def peer(name):
    from torch.nn.attention import SDPBackend, sdpa_kernel

    backend = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION, "efficient": SDPBackend.EFFICIENT_ATTENTION}[name]

    def prepare(p):
        causal = p.causal != "none"
        if causal and p.Sq != p.Sk:
            raise RuntimeError("alignment")

        def call():
            with sdpa_kernel(backend):
                return torch.nn.functional.scaled_dot_product_attention(
                    p.q, p.k, p.v, is_causal=causal, scale=p.scale, enable_gqa=p.Hq != p.Hkv)

        return call

    return prepare


def times(calls, seconds, least=7):
    """Milliseconds of each call, in turns, after half a second of the same work."""
    names = list(calls)
    start = time.perf_counter()
    while time.perf_counter() - start < args_warm:
        for n in names:
            calls[n]()
        torch.cuda.synchronize()
    out = {n: [] for n in names}
    start = time.perf_counter()
    while time.perf_counter() - start < seconds or len(out[names[0]]) < least:
        events = []
        torch.cuda._sleep(400000)
        for n in names:
            a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            a.record()
            calls[n]()
            b.record()
            events.append((n, a, b))
        torch.cuda.synchronize()
        for n, a, b in events:
            out[n].append(a.elapsed_time(b))
    return out


args_warm = 0.5


def bench(args):
    global args_warm
    args_warm = args.warm
    torch.manual_seed(1)
    kernels = Kernels(args.kernels, args.family, args.ptx)
    for dtype in args.dtypes.split(","):
        for d in args.dims.split(","):
            device()
            d, _, dv = d.partition("x")
            d, dv = int(d), int(dv or d)
            for n in map(int, args.lengths.split(",")):
                for causal in args.causal.split(","):
                    p = build(dtype, args.batch, args.heads, args.heads_kv or args.heads, n, n, d, dv, causal, "bhsd")
                    bench_one(kernels, args, p)
                    args_warm = min(args_warm, args.rewarm)
    device()


def device():
    """Reports the GPU and how it is doing."""
    fields = "name,driver_version,clocks.sm,power.draw,temperature.gpu"
    try:
        text = subprocess.run(["nvidia-smi", "-i", "0", "--format=csv,noheader", "--query-gpu=" + fields],
                              capture_output=True, text=True, timeout=10).stdout
    except (OSError, subprocess.TimeoutExpired):
        return
    report(kind="device", torch=torch.__version__, **dict(zip(fields.split(","), (x.strip() for x in text.split(",")))))


def bench_one(kernels, args, p):
    calls, entries = {}, {}
    o, lse = p.outputs()
    for family in args.family:
        fit = [kernels.find(family, p)]
        if args.all_entries:
            fit = [e for e in kernels.entries if e["family"] == family and kernels.suits(e, p) and e["d"] == fit[0]["d"]]
        for e in filter(None, fit):
            got, got_lse = kernels.run(e, p)
            reason, worst = judge(p, got, got_lse, [(0, 0), (p.B - 1, p.Hq - 1)])
            if reason:
                report(kind="bench", impl=e["entry"], status="FAIL", reason=reason, **p.name())
                continue
            calls[e["entry"]] = kernels.prepare(e, p, o, lse if args.lse else None)
    for name in filter(None, args.peers.split(",")):
        try:
            call = peer(name)(p)
            call()
            calls[name] = call
        except RuntimeError as err:
            report(kind="bench", impl=name, status="unsupported", reason=str(err).splitlines()[0][:120], **p.name())
    if not calls:
        return
    for name, ms in times(calls, args.seconds).items():
        middle = statistics.median(ms)
        report(kind="bench", impl=name, ms=round(middle, 5), tflops=round(p.flops() / middle / 1e9, 1), n=len(ms),
               samples=[round(x, 5) for x in ms], **p.name())


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("command", choices=["check", "bench"])
    a.add_argument("--kernels", default=KERNELS, help="folder of the tables, with the modules in bin/")
    a.add_argument("--family", default="fa2", type=lambda s: s.split(","), help="ref, fa2, fa3")
    a.add_argument("--dtypes", default="f16,bf16")
    a.add_argument("--dims", default="64,128", help="head dims; 192x128 for D and Dv that differ")
    a.add_argument("--lengths", default="1024,4096")
    a.add_argument("--causal", default="none,top-left")
    a.add_argument("--batch", type=int, default=16)
    a.add_argument("--heads", type=int, default=8)
    a.add_argument("--heads-kv", type=int, default=0)
    a.add_argument("--peers", default="flash,cudnn")
    a.add_argument("--level", default="short", choices=["tiny", "short", "full"])
    a.add_argument("--seconds", type=float, default=0.3, help="measuring time of a problem")
    a.add_argument("--warm", type=float, default=0.5)
    a.add_argument("--rewarm", type=float, default=0.15, help="warm-up of every problem after the first")
    a.add_argument("--all-entries", action="store_true", help="time every entry that fits, not only the best bucket")
    a.add_argument("--lse", action="store_true")
    a.add_argument("--ptx", action="store_true", help="load the PTX instead of the cubins")
    args = a.parse_args()
    return check(args) if args.command == "check" else bench(args)


if __name__ == "__main__":
    sys.exit(main() or 0)
