#!/usr/bin/env python3
"""cuda_peer.py check|bench|table [options]

The CUDA kernels of cudapath/kernels without the Go host: their launch tables are
read, the compiled modules loaded, and every entry point launched on PyTorch's
tensors. Needs Python 3.8, PyTorch and an NVIDIA GPU with its driver; no nvcc.

    cuda_peer.py check --family fa2 --level full     conformance, against float64
    cuda_peer.py bench --family fa2,fa3 --dims 64,128 --lengths 1024,4096
    cuda_peer.py bench --family fa2 --peers flash,cudnn
    cuda_peer.py table race.jsonl                      what bench printed, as a table

check compares with float64 by three rules at once (largest error, mean error,
NMSE, each against what plain attention in the storage type would do), and looks
for bits that change from run to run or by what masked slots and padding hold.
bench verifies, then times all kernels and PyTorch's backends in turns; the clock
settles first. Both print one line of JSON for each result; the exit code of
check is 1 when anything failed.
"""
import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
KERNELS = os.path.normpath(os.path.join(HERE, "..", "cudapath", "kernels"))
sys.path.insert(0, os.path.join(HERE, "lib"))
try:
    import torch
    from cuda_judge import TYPES, judge, make
    from cuda_kernels import Kernels, Problem
except ImportError as error:  # a table and the help can be made without PyTorch
    if sys.argv[1:2] not in (["table"], ["-h"], ["--help"]):
        sys.exit(f"cuda_peer.py: PyTorch is needed: {error}")


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
        turn = len(out[names[0]]) % len(names)  # the first of a round is up to 4 % slower
        for n in names[turn:] + names[:turn]:
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


# table

RIVALS = (("fa2", "flash"), ("fa3", "cudnn"))


def table(path):
    """Prints the rows of bench as Markdown: each family versus its rival of the same run."""
    cells, ratios = {}, {ours: [] for ours, _ in RIVALS}
    for line in open(path):
        r = json.loads(line)
        if r.get("kind") == "bench" and "ms" in r:
            name = r["impl"].split("_")[1] if r["impl"].startswith("attn_") else r["impl"]
            dims = str(r["d"]) if r["d"] == r["dv"] else "%d/%d" % (r["d"], r["dv"])
            cells.setdefault((r["dtype"], dims, r["causal"], r["sq"]), {})[name] = r
    print("| type | head dim | causal | length |" + "".join(" %s ms (min / median / max) | TFLOP/s | %s ms | TFLOP/s | ratio |" % x for x in RIVALS))
    print("|---|---|---|---|" + "---|" * 5 * len(RIVALS))
    for key, row in cells.items():
        line = "| %s | %s | %s | %d |" % key
        for ours, rival in RIVALS:
            a, b = row.get(ours), row.get(rival)
            for r in (a, b):
                line += " %.4g / %.4g / %.4g | %.1f |" % (min(r["samples"]), r["ms"], max(r["samples"]), r["tflops"]) if r else " | |"
            if a and b:
                ratios[ours].append(b["ms"] / a["ms"])
            line += " %.3f |" % (b["ms"] / a["ms"]) if a and b else " |"
        print(line)
    for ours, rival in RIVALS:
        if ratios[ours]:
            mean = math.exp(sum(map(math.log, ratios[ours])) / len(ratios[ours]))
            print("\n%s / %s: geometric mean %.3f, least %.3f, of %d" % (ours, rival, mean, min(ratios[ours]), len(ratios[ours])))


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("command", choices=["check", "bench", "table"])
    a.add_argument("path", nargs="?", default="race.jsonl", help="of table: what bench printed")
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
    if args.command == "table":
        return table(args.path)
    return check(args) if args.command == "check" else bench(args)


if __name__ == "__main__":
    sys.exit(main() or 0)
