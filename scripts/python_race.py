#!/usr/bin/env python3
"""python_race.py host|attention|train [options]

The Python package vkattn versus PyTorch's attention, in one process on one NVIDIA GPU. It
needs the package (make python) and PyTorch 2.5 or newer.

    host       host time of a call versus that of scaled_dot_product_attention, B 1, 8 heads;
               under a CUDA graph the time of a replay, too
    attention  device time of forward and backward versus the backends cuDNN and
               FlashAttention, 1024 to 16384 rows, head dims 64 and 128, full and causal
    train      training steps of a small GPT under torch.compile: loss and time with vkattn
               and with two backends of PyTorch, from the same weights on the same tokens

Contenders take turns in rounds, each round in another order. A row is a line of JSON with
its samples; the tables of host and attention follow as comments.
"""
import argparse
import json
import math
import random
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import vkattn
import vkattn.flash_attn as fa

BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}


def report(**row):
    print(json.dumps(row), flush=True)


def in_turns(rounds, contenders, measure):
    """{name: samples} of measure(name, f), in rounds of random order."""
    samples = {name: [] for name in contenders}
    for _ in range(rounds):
        order = list(contenders)
        random.shuffle(order)
        for name in order:
            samples[name].append(measure(name, contenders[name]))
    return samples


def device_ms(f, calls=4):
    """Time of a call: several between two events, since an event waits for the host too."""
    f()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(calls):
        f()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / calls


def host_us(f, calls=100):
    f()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        f()
    spent = (time.perf_counter() - start) / calls * 1e6
    torch.cuda.synchronize()
    return spent


def graph_of(f):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        f()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        f()
    return graph


def host(args):
    for rows in (128, 256, 512):
        q = torch.randn(1, rows, 8, 64, device="cuda", dtype=torch.float16)
        r = q.clone().requires_grad_()
        t = q.transpose(1, 2)
        s = t.detach().clone().requires_grad_()
        d = t.detach().clone()

        def theirs():
            return F.scaled_dot_product_attention(t, t, t)

        ours_once, theirs_once = fa.flash_attn_func(r, r, r), F.scaled_dot_product_attention(s, s, s)
        many = graph_of(lambda: [fa.flash_attn_func(q, q, q) for _ in range(100)])
        contenders = {
            "direct": lambda: fa.flash_attn_func(q, q, q),
            "with gradients": lambda: fa.flash_attn_func(r, r, r),
            "forward and backward": lambda: torch.autograd.grad(fa.flash_attn_func(r, r, r), r, q),
            "vkattn.sdpa": lambda: vkattn.sdpa(t, t, t),
            "sdpa": theirs,
            "sdpa forward and backward": lambda: torch.autograd.grad(F.scaled_dot_product_attention(s, s, s), s, d),
            "backward": lambda: torch.autograd.grad(ours_once, r, q, retain_graph=True),
            "sdpa backward": lambda: torch.autograd.grad(theirs_once, s, d, retain_graph=True),
        }
        samples = in_turns(args.rounds, contenders, lambda _, f: host_us(f))
        # What the host would have to be faster than: the device's time of a call, if that is the longer.
        for name in ("backward", "sdpa backward"):
            samples[name + ", device"] = [device_ms(contenders[name], 50) * 1e3 for _ in range(args.rounds)]
        # The kernel's own time is that of a call in a graph of a hundred.
        samples["kernel"] = [device_ms(many.replay, 1) * 10 for _ in range(args.rounds)]
        # A graph of one call: what launching it costs the host.
        one = graph_of(lambda: fa.flash_attn_func(q, q, q))
        samples["graph"] = [host_us(one.replay) for _ in range(args.rounds)]
        for name, x in samples.items():
            report(entry="host", rows=rows, name=name, us=statistics.median(x), samples=x)
            print(f"# {rows:5d} {name:26s} {statistics.median(x):8.1f} us", flush=True)


def attention(args):
    ratios = {}
    for dtype in (torch.float16, torch.bfloat16):
        for d in (64, 128):
            for rows in (1024, 2048, 4096, 8192, 16384):
                b, h = max(1, 16384 // rows), 2048 // d
                q, k, v = (torch.randn(b, rows, h, d, device="cuda", dtype=dtype).requires_grad_() for _ in range(3))
                g = torch.randn_like(q)
                for causal in (False, True):

                    def call(name):
                        if name == "vkattn":
                            return fa.flash_attn_func(q, k, v, causal=causal)
                        with sdpa_kernel(BACKENDS[name]):
                            return F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), is_causal=causal)

                    def forward(name):
                        with torch.no_grad():
                            call(name)

                    out = {name: call(name) for name in ("vkattn", *BACKENDS)}
                    wide = {name: o if name == "vkattn" else o.transpose(1, 2) for name, o in out.items()}
                    for name, o in wide.items():
                        if not torch.allclose(o, wide["flash"], atol=1e-2, rtol=1e-2):
                            sys.exit(f"python_race: {name} differs from flash: {dtype} {d} {rows} causal={causal}")

                    def backward(name):
                        torch.autograd.grad(out[name], (q, k, v), g if name == "vkattn" else g.transpose(1, 2), retain_graph=True)

                    for which, f in (("fwd", forward), ("bwd", backward)):
                        contenders = {name: (lambda f=f, name=name: f(name)) for name in out}
                        samples = in_turns(args.rounds, contenders, lambda _, f: device_ms(f))
                        ms = {name: statistics.median(x) for name, x in samples.items()}
                        row = dict(dtype=str(dtype)[6:], headdim=d, batch=b, heads=h, seqlen=rows, causal=causal)
                        report(entry="attention", which=which, **row, ms=ms, samples=samples)
                        for peer in BACKENDS:
                            ratios.setdefault((which, peer), []).append(ms[peer] / ms["vkattn"])
    for (which, peer), x in ratios.items():
        mean = math.exp(statistics.fmean(map(math.log, x)))
        print(f"# {which}: {mean:.3f} x {peer} (geometric mean of {len(x)}; least {min(x):.3f}, most {max(x):.3f})", flush=True)


class Block(torch.nn.Module):
    def __init__(self, width, heads, attend):
        super().__init__()
        self.heads, self.attend = heads, attend
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.mlp = torch.nn.Sequential(torch.nn.Linear(width, 4 * width), torch.nn.GELU(), torch.nn.Linear(4 * width, width))

    def forward(self, x):
        b, rows, width = x.shape
        q, k, v = self.qkv(self.norms[0](x)).view(b, rows, 3, self.heads, width // self.heads).unbind(2)
        x = x + self.out(self.attend(q, k, v).reshape(b, rows, width))
        return x + self.mlp(self.norms[1](x))


class GPT(torch.nn.Module):
    def __init__(self, attend, layers=6, width=768, heads=12, words=4096, rows=1024):
        super().__init__()
        self.words, self.places = torch.nn.Embedding(words, width), torch.nn.Embedding(rows, width)
        self.blocks = torch.nn.Sequential(*(Block(width, heads, attend) for _ in range(layers)))
        self.norm, self.head = torch.nn.LayerNorm(width), torch.nn.Linear(width, words, bias=False)

    def forward(self, tokens):
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.norm(self.blocks(x)))


def train(args):
    def vkattn_attend(q, k, v):
        return fa.flash_attn_func(q, k, v, causal=True)

    def sdpa_attend(q, k, v):
        return F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), is_causal=True).transpose(1, 2)

    attends = {"vkattn": vkattn_attend, "cudnn": sdpa_attend, "flash": sdpa_attend}
    torch.manual_seed(1)
    # A walk over the words that a model can learn.
    steps = (torch.randint(0, 7, (args.steps, 8, 1025), device="cuda") * 3 + 1).cumsum(2) % 4096
    weights, runs = None, {}
    for name, attend in attends.items():
        torch.manual_seed(2)
        model = GPT(attend).cuda()
        if weights is None:
            weights = {k: v.clone() for k, v in model.state_dict().items()}
        model.load_state_dict(weights)
        adam = torch.optim.AdamW(model.parameters(), lr=3e-4)
        torch._dynamo.reset()

        def loss_of(tokens, model=model):
            with torch.autocast("cuda", torch.bfloat16):
                x = model(tokens[:, :-1])
            return F.cross_entropy(x.float().flatten(0, 1), tokens[:, 1:].flatten())

        runs[name] = torch.compile(loss_of, fullgraph=True, mode=args.mode), adam, []

    def step(name, tokens):
        loss_of, adam, losses = runs[name]
        torch.compiler.cudagraph_mark_step_begin()  # a graph's outputs last until the next step
        with sdpa_kernel(BACKENDS.get(name, SDPBackend.MATH)):
            loss = loss_of(tokens)
            loss.backward()
        adam.step()
        adam.zero_grad()
        losses.append(loss.detach().clone())

    ms = {name: [] for name in runs}
    for i in range(args.steps):
        order = list(runs)
        random.shuffle(order)
        for name in order:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            step(name, steps[i])
            end.record()
            end.synchronize()
            ms[name].append(start.elapsed_time(end))
    losses = {name: [x.item() for x in run[2]] for name, run in runs.items()}
    for name in runs:
        report(entry="train", name=name, mode=args.mode, ms=statistics.median(ms[name][10:]), losses=losses[name], samples=ms[name])
        print(f"# {name:8s} step {statistics.median(ms[name][10:]):.3f} ms, loss {losses[name][0]:.4f} to {losses[name][-1]:.4f}", flush=True)
    for a, b in (("vkattn", "cudnn"), ("vkattn", "flash"), ("cudnn", "flash")):
        gaps = [abs(x - y) for x, y in zip(losses[a], losses[b])]
        print(f"# |loss {a} - loss {b}|: mean {statistics.fmean(gaps):.6f}, most {max(gaps):.6f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("entry", choices=["host", "attention", "train"])
    parser.add_argument("--rounds", type=int, default=9, help="rounds of host and attention (9)")
    parser.add_argument("--steps", type=int, default=100, help="steps of train (100)")
    parser.add_argument("--mode", default="default", help="of torch.compile in train; reduce-overhead makes CUDA graphs (default)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the data and of the orders (1)")
    args = parser.parse_args()
    random.seed(args.seed)
    torch.manual_seed(args.seed)
    {"host": host, "attention": attention, "train": train}[args.entry](args)


if __name__ == "__main__":
    main()
