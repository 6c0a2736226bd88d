#!/usr/bin/env python3
"""peer_torch.py BACKEND [--device cuda|cpu]

PyTorch's scaled_dot_product_attention as a peer of "vkattn bench":

    vkattn bench --peer "python3 scripts/peer_torch.py flash" --peer "python3 scripts/peer_torch.py cudnn"

BACKEND is flash, cudnn, efficient or math; or flex: flex_attention, compiled, which
also takes score and mask modifiers; or copy: not attention, but a copy on
the device that reads and writes as many bytes together as the problem's K and V
have, which is what decoding is measured against. Needs Python 3.8 and PyTorch 2.5.

cpu is the flash kernel for the CPU, for "vkattn bench --device cpu". It has as many
threads as vkattn: GOMAXPROCS if set, else the number of CPUs that it may run on.

The protocol is lines of JSON: a request on standard input, an answer with the
same "id" on standard output. The package comment of
cmd/vkattn/internal/peer/protocol.go describes it; in short:

    hello    uuid                     -> name, program, device, uuid, timer
    problem  sizes, causal, dtype...  -> status ok | unsupported | wrong | oom | error
    time     n                        -> ms: n times
    release                           -> frees the problem's memory
    end                               -> ends

Times are of CUDA events around each call, on inputs that take turns, so that
none is found in the cache. What a backend does not take is answered
"unsupported" with PyTorch's own reason, and nothing else is timed in its place.
The first result of each problem is compared with float64 on some rows.

A problem with "pass": "bwd" is timed as torch.autograd.grad of O with respect to
Q, K and V, from a forward pass that is not timed; "fwdbwd" times both. Gradients of
one KV head are compared with float64, whole.
"""
import argparse
import ast
import json
import os
import random
import re
import sys
import time
import warnings

torch = None  # imported at the first hello, so that a machine without it gets an answer
BACKENDS = {
    "flash": "FLASH_ATTENTION",
    "cudnn": "CUDNN_ATTENTION",
    "efficient": "EFFICIENT_ATTENTION",
    "math": "MATH",
    "cpu": "FLASH_ATTENTION",
}
COPY = "copy"
FLEX = "flex"
CPU = "cpu"


class Refusal(Exception):
    """An answer other than ok: its status and the reason."""

    def __init__(self, status, reason):
        super().__init__(reason)
        self.status = status


class Timed:
    """A call on inputs that take turns, and its times."""

    def __init__(self, device):
        self.device = device
        self.next = 0
        self.enqueue = 0.0  # seconds the host takes for one call

    def call(self):
        raise NotImplementedError

    def once(self):
        """Runs set 0, and again to see how long the host takes to ask for it."""
        self.call()
        self.synchronize()
        start = time.perf_counter()
        self.call()
        self.enqueue = min(time.perf_counter() - start, 2e-3)
        self.synchronize()

    def synchronize(self):
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def time(self, n):
        if self.device.type != "cuda":
            return [self.wall() for _ in range(n)]
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(n)]
        # The device waits until all calls are asked for: a short one would
        # otherwise be timed with the host's work before it. At 2 GHz or less.
        torch.cuda._sleep(int(2e9 * (2e-4 + 1.5 * n * self.enqueue)))
        for before, after in events:
            before.record()
            self.call()
            after.record()
        self.synchronize()
        return [before.elapsed_time(after) for before, after in events]

    def wall(self):
        start = time.perf_counter()
        self.call()
        return (time.perf_counter() - start) * 1e3


class Copy(Timed):
    """A copy of half the bytes of K and V: with what it writes, as many as they have."""

    def __init__(self, _, device, p):
        super().__init__(device)
        keys = p["batch"] * p["heads_kv"] * p["seqlen_k"]
        size = {"f16": 2, "bf16": 2, "f32": 4}[p["dtype"]]
        half = max(1, keys * (p["headdim"] + p["headdim_v"]) * size // 2)
        # Memory that was never written may be read faster than any other.
        self.sets = [tuple(torch.ones(half, device=device, dtype=torch.uint8) for _ in range(2)) for _ in range(p["sets"])]
        self.memory = 2 * half

    def call(self):
        source, target = self.sets[self.next]
        target.copy_(source)
        self.next = (self.next + 1) % len(self.sets)

    def check(self):
        return {"rows": 0}


class Sdpa(Timed):
    """One problem: its inputs in several sets, and the call."""

    def __init__(self, backend, device, p):
        super().__init__(device)
        self.dtype = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}[p["dtype"]]
        self.p = p
        self.modifiers = Modifiers(p, device)
        if backend == FLEX:
            self.attention, self.arguments = flex(p, device, self.modifiers)
        else:
            self.attention, self.arguments = torch.nn.functional.scaled_dot_product_attention, arguments(backend, p)
        b, hq, hkv = p["batch"], p["heads"], p["heads_kv"]
        sq, sk, d, dv = p["seqlen_q"], p["seqlen_k"], p["headdim"], p["headdim_v"]
        if backend == "math" and device.type == "cuda":
            need = 3 * 4 * b * hq * sq * sk
            free = torch.cuda.mem_get_info(device)[0]
            if need > free:
                raise Refusal("oom", "the scores take %.0f GiB, %.0f are free" % (need / 2**30, free / 2**30))
        torch.manual_seed(p["seed"] % 2**63)
        self.sets = [
            tuple(torch.randn(shape, device=device, dtype=self.dtype) for shape in
                  ((b, hq, sq, d), (b, hkv, sk, d), (b, hkv, sk, dv)))
            for _ in range(p["sets"])
        ]
        # One result per set is held, so that results take turns too.
        self.results = [None] * len(self.sets)
        self.memory = (sum(t.numel() for t in self.sets[0]) + b * hq * sq * dv) * self.sets[0][0].element_size()

    def call(self):
        q, k, v = self.sets[self.next]
        self.results[self.next] = self.attention(q, k, v, **self.arguments)
        self.next = (self.next + 1) % len(self.sets)

    def check(self):
        """Compares rows of set 0 with float64; plain attention in the storage
        type is the measure of what error is allowed, as in vkattn's own checks.
        """
        p = self.p
        q, k, v = self.sets[0]
        rng = random.Random(p["seed"])
        sq, group = p["seqlen_q"], p["heads"] // p["heads_kv"]
        rows = sorted({0, sq // 2, sq - 1} | {rng.randrange(sq) for _ in range(61)})
        at = torch.tensor(rows, device=self.device)
        heads = sorted({(0, 0), (p["batch"] - 1, p["heads"] - 1), (rng.randrange(p["batch"]), rng.randrange(p["heads"]))})
        got, ref, low = [], [], []
        for b, h in heads:
            x, y, z = q[b, h, at], k[b, h // group], v[b, h // group]
            got.append(self.results[0][b, h, at].double())
            hidden = self.modifiers.hidden(b, h, at)
            s = self.modifiers.scores(x.double() @ y.double().T * p["scale"], b, h, at)
            ref.append(weights(s, hidden) @ z.double())
            s = self.modifiers.scores(x.float() @ y.float().T * p["scale"], b, h, at).to(self.dtype)
            w = weights(s.float(), hidden).to(self.dtype)
            low.append((w.float() @ z.float()).to(self.dtype).double())
        got, ref, low = (torch.cat(t) for t in (got, ref, low))
        size = float((ref * ref).sum())
        error, allowed = float((got - ref).abs().max()), 2 * float((low - ref).abs().max()) + 1e-5
        nmse = float(((got - ref) ** 2).sum()) / size
        floor = {"f16": 1e-5, "bf16": 1e-4, "f32": 1e-10}[p["dtype"]]
        allowed_nmse = max(floor, 4 * float(((low - ref) ** 2).sum()) / size)
        if not error <= allowed:
            raise Refusal("wrong", "max error %.3g is over %.3g" % (error, allowed))
        if not nmse <= allowed_nmse:
            raise Refusal("wrong", "NMSE %.3g is over %.3g" % (nmse, allowed_nmse))
        return {"rows": len(rows) * len(heads), "max_error": error, "nmse": nmse}


class Gradients(Sdpa):
    """The gradients of one problem: after a forward pass whose graph stays, or with it."""

    def __init__(self, backend, device, p):
        super().__init__(backend, device, p)
        both = p["pass"] == "fwdbwd"
        if backend == "math" and not both:
            # A set keeps its scores, which exceed every cache: few sets will do.
            graph = 3 * 4 * p["batch"] * p["heads"] * p["seqlen_q"] * p["seqlen_k"]
            free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 2**32
            self.sets = self.sets[:max(1, int(free / 4 / graph))]
        self.both = both
        torch.manual_seed(p["seed"] % 2**63 + 1)
        shape = (p["batch"], p["heads"], p["seqlen_q"], p["headdim_v"])
        self.upstream = [torch.randn(shape, device=device, dtype=self.dtype) for _ in self.sets]
        for tensors in self.sets:
            for t in tensors:
                t.requires_grad_(True)
        self.results = [None] * len(self.sets)  # of a set: dQ, dK and dV
        before = self.allocated()
        first = self.forward(0)
        self.memory += self.allocated() - before  # O was counted, which stands for dO
        self.outputs = [first] if not both else []
        if not both:
            self.outputs += [self.forward(i) for i in range(1, len(self.sets))]

    def allocated(self):
        return torch.cuda.memory_allocated(self.device) if self.device.type == "cuda" else 0

    def forward(self, i):
        with torch.enable_grad():
            return self.attention(*self.sets[i], **self.arguments)

    def call(self):
        i = self.next
        o = self.forward(i) if self.both else self.outputs[i]
        self.results[i] = torch.autograd.grad(o, self.sets[i], self.upstream[i], retain_graph=not self.both)
        self.next = (i + 1) % len(self.sets)

    def check(self):
        """Compares dQ, dK and dV of the last KV head of the last batch with float64, in
        chunks of rows; plain attention in the storage type is the measure.
        """
        p, (q, k, v), low_type = self.p, self.sets[0], self.dtype
        group, sq, sk = p["heads"] // p["heads_kv"], p["seqlen_q"], p["seqlen_k"]
        b, kv = p["batch"] - 1, p["heads_kv"] - 1
        got = [t[b] for t in self.results[0]]
        got = [got[0][kv * group:(kv + 1) * group], got[1][kv], got[2][kv]]

        def reference(wide, rounded):
            """Gradients with products in the type wide, each stored as rounded says."""
            y, z = k[b, kv].detach().to(wide), v[b, kv].detach().to(wide)
            dq = [torch.zeros(sq, q.shape[-1], device=self.device, dtype=wide) for _ in range(group)]
            dk, dv = torch.zeros_like(y), torch.zeros_like(z)
            rows = max(1, min(sq, 2**26 // sk))
            for g in range(group):
                h = kv * group + g
                for at in range(0, sq, rows):
                    to = min(sq, at + rows)
                    x, up = q[b, h, at:to].detach().to(wide), self.upstream[0][b, h, at:to].to(wide)
                    each = torch.arange(at, to, device=self.device)
                    with torch.enable_grad():
                        s = (x @ y.T * p["scale"]).requires_grad_(True)
                        modified = self.modifiers.scores(s, b, h, each)
                    w = rounded(weights(rounded(modified.detach()), self.modifiers.hidden(b, h, each)))
                    dp = rounded(up @ z.T)
                    ds = rounded(w * (dp - (w * dp).sum(-1, keepdim=True)))
                    if modified is not s:
                        ds = rounded(torch.autograd.grad(modified, s, ds)[0])
                    dq[g][at:to] = ds @ y * p["scale"]
                    dk += ds.T @ x * p["scale"]
                    dv += w.T @ up
            return [rounded(t) for t in (torch.stack(dq), dk, dv)]

        exact = reference(torch.float64, lambda t: t)
        low = reference(torch.float32, lambda t: t.to(low_type).to(torch.float32))
        worst, nmse = 0.0, 0.0
        for name, x, ref, plain in zip(("dQ", "dK", "dV"), got, exact, low):
            error, allowed = float((x.double() - ref).abs().max()), 3 * float((plain.double() - ref).abs().max()) + 1e-4
            if not error <= allowed:
                raise Refusal("wrong", "%s: max error %.3g is over %.3g" % (name, error, allowed))
            worst = max(worst, error)
            nmse = max(nmse, float(((x.double() - ref) ** 2).sum() / (ref * ref).sum()))
        return {"rows": group * sq, "max_error": worst, "nmse": nmse}


def weights(scores, hidden):
    """The softmax of scores, 0 where a key is hidden and in rows without a key."""
    return torch.softmax(scores.masked_fill(hidden, float("-inf")), -1).masked_fill(hidden, 0)


class Modifiers:
    """The score and mask modifiers of a problem as functions of PyTorch, with its causal
    mask: score(s, b, h, row, key) and mask(b, h, row, key), or None.
    """

    def __init__(self, p, device):
        self.p = p
        self.keys = torch.arange(p["seqlen_k"], device=device, dtype=torch.int32)
        tables = {}
        for item in filter(None, p.get("tables", "").split(",")):
            name, source = item.split("=", 1)
            tables[name] = table(source).to(device)
        score, mask = p.get("score_mod", ""), p.get("mask_mod", "")
        if p["causal"] != "none":
            mask = "j <= i && (%s)" % mask if mask else "j <= i"
        self.score = Translator(p, score, tables).function("s, b, h, q, j") if score else None
        self.mask = Translator(p, mask, tables).function("b, h, q, j") if mask else None
        self.per_head = bool(re.search(r"\b(b|h|hkv)\b", mask))

    def at(self, b, h, rows):
        b, h = (torch.tensor(x, device=rows.device, dtype=torch.int32) for x in (b, h))
        return b, h, rows.to(torch.int32)[:, None], self.keys[None, :]

    def scores(self, s, b, h, rows):
        return s if self.score is None else self.score(s, *self.at(b, h, rows))

    def hidden(self, b, h, rows):
        if self.mask is None:
            return torch.zeros((len(rows), len(self.keys)), device=rows.device, dtype=torch.bool)
        return ~self.mask(*self.at(b, h, rows))


def table(source):
    """A table of modifiers: random floats of sizes such as 16x32, or a .npy file."""
    if re.fullmatch(r"[0-9]+(x[0-9]+)*", source):
        return torch.randn([int(n) for n in source.split("x")])
    with open(source, "rb") as f:
        version = f.read(8)[6]
        header = ast.literal_eval(f.read(int.from_bytes(f.read(2 if version == 1 else 4), "little")).decode())
        kinds = {"<i4": torch.int32, "<i8": torch.int64, "<f2": torch.float16, "<f4": torch.float32}
        if header["descr"] not in kinds or header["fortran_order"]:
            raise Refusal("unsupported", "%s: a table of %s" % (source, header["descr"]))
        t = torch.frombuffer(bytearray(f.read()), dtype=kinds[header["descr"]]).reshape(header["shape"])
    return t.float() if t.is_floating_point() else t.int()


class Translator:
    """Translates the text of a modifier, as docs/modifiers.md has it, into PyTorch. An
    index beyond a table is an error there.
    """

    TOKEN = re.compile(r"\s*(\|\||&&|<<|>>|[<>=!]=|[-+*/%&|^~!<>?:()\[\],]|[0-9][0-9.]*(?:e[-+]?[0-9]+)?|\w+)")
    LEVELS = ("||", "&&", "|", "^", "&", "== !=", "< <= > >=", "<< >>", "+ -", "* / %")
    COMPARED = "== != < <= > >=".split()

    def __init__(self, p, text, tables):
        self.tables = tables
        offset = 0 if p["causal"] == "top-left" else p["seqlen_k"] - p["seqlen_q"]
        self.names = {"s": ("s", "float"), "inf": ('float("inf")', "float"), "nan": ('float("nan")', "float"),
                      "i": ("(q + %d)" % offset if offset else "q", "int"), "row": ("q", "int"),
                      "hkv": ("(h // %d)" % (p["heads"] // p["heads_kv"]), "int"),
                      "sq": (str(p["seqlen_q"]), "int"), "sk": (str(p["seqlen_k"]), "int")}
        self.names.update((x, (x, "int")) for x in "bhj")
        self.tokens = self.TOKEN.findall(text) + [""]

    def function(self, parameters):
        code = self.select()[0]
        if self.tokens != [""]:
            raise Refusal("unsupported", "cannot translate the modifier at %s" % self.tokens[0])
        made = {}
        exec("def make(%s):\n  def modifier(%s):\n    return %s\n  return modifier" % (", ".join(self.tables), parameters, code),
             globals(), made)
        return made["make"](**self.tables)

    def take(self, *symbols):
        return self.tokens.pop(0) if self.tokens[0] in symbols else ""

    def select(self):
        c = self.binary(0)
        if not self.take("?"):
            return c
        a = self.select()
        self.take(":")
        b = self.select()
        if (a[0], b[0]) == ("1", "0"):
            return "(%s).to(torch.int32)" % c[0], "int"
        return "torch.where(%s, %s, %s)" % (c[0], a[0], b[0]), "float" if "float" in (a[1], b[1]) else a[1]

    def binary(self, level):
        if level == len(self.LEVELS):
            return self.unary()
        a = self.binary(level + 1)
        while True:
            symbol = self.take(*self.LEVELS[level].split())
            if not symbol:
                return a
            b = self.binary(level + 1)
            kind = "bool" if symbol in self.COMPARED else "float" if "float" in (a[1], b[1]) else a[1]
            if symbol == "/" and kind == "int":
                symbol = "//"
            a = "(%s %s %s)" % (a[0], {"&&": "&", "||": "|"}.get(symbol, symbol), b[0]), kind

    def unary(self):
        symbol = self.take("-", "!", "~")
        if symbol:
            x = self.unary()
            return "(%s%s)" % ("-" if symbol == "-" else "~", x[0]), x[1]
        return self.primary()

    def items(self, end):
        list = [self.select()]
        while self.take(","):
            list.append(self.select())
        self.take(end)
        return list

    def primary(self):
        word = self.tokens.pop(0)
        if word == "(":
            return self.items(")")[0]
        if word[:1].isdigit():
            return word, "float" if re.search("[.e]", word) else "int"
        if self.take("["):
            indices = ", ".join(x[0] for x in self.items("]"))
            return "%s[%s]" % (word, indices), "float" if self.tables[word].is_floating_point() else "int"
        if self.take("("):
            return self.call(word, self.items(")"))
        if word not in self.names:
            raise Refusal("unsupported", "cannot translate the modifier at %s" % word)
        return self.names[word]

    def call(self, name, x):
        a = x[0][0]
        kind = "float" if "float" in [t for _, t in x] else x[0][1]
        if name == "float":
            return ("%s.0" % a if a.isdigit() else "(%s).to(torch.float32)" % a), "float"
        if name == "clamp":
            low = self.call("max", x[:2])
            return self.call("min", [low, x[2]])
        if name in ("min", "max"):
            b = x[1][0]
            return "torch.where(%s %s %s, %s, %s)" % (a, "<" if name == "min" else ">", b, a, b), kind
        return "torch.%s(%s)" % (name, a), kind if name in ("abs", "sign") else "float"


def flex(p, device, modifiers):
    """flex_attention with its arguments for a problem: the block mask is made here, once."""
    from torch.nn.attention import flex_attention as module
    # A compiled call for each problem, with constant sizes. On a CPU there may be no compiler.
    call = module.flex_attention
    if device.type == "cuda":
        torch._dynamo.reset()
        call = torch.compile(call, dynamic=False, fullgraph=True)
    a = {"scale": p["scale"], "enable_gqa": p["heads"] != p["heads_kv"]}
    if modifiers.score is not None:
        a["score_mod"] = modifiers.score
    if modifiers.mask is not None:
        b, h = (p["batch"], p["heads"]) if modifiers.per_head else (None, None)
        a["block_mask"] = module.create_block_mask(modifiers.mask, b, h, p["seqlen_q"], p["seqlen_k"], device=device.type)
    return call, a


def arguments(backend, p):
    """The keyword arguments of a problem. is_causal is top-left by PyTorch's
    contract; bottom-right is an object that flash and efficient know as a mask
    of their own. cuDNN would be handed it as a matrix: another computation.
    """
    a = {"scale": p["scale"]}
    if p["heads"] != p["heads_kv"]:
        a["enable_gqa"] = True
    sq, sk = p["seqlen_q"], p["seqlen_k"]
    if p["causal"] == "none":
        return a
    if sq == sk:
        a["is_causal"] = True
    elif p["causal"] == "top-left":
        if backend in ("flash", "cpu"):
            raise Refusal("unsupported", "flash's causal mask is bottom-right where the lengths differ")
        a["is_causal"] = True
    elif sq > sk:
        raise Refusal("unsupported", "rows without a key")
    elif backend == "cudnn":
        raise Refusal("unsupported", "no bottom-right causal mask but as a matrix")
    else:
        from torch.nn.attention.bias import causal_lower_right
        a["attn_mask"] = causal_lower_right(sq, sk)
    return a


def threads():
    """The CPUs that a Go program with this environment computes on."""
    wanted = os.environ.get("GOMAXPROCS", "")
    return int(wanted) if wanted.isdigit() and int(wanted) > 0 else len(os.sched_getaffinity(0))


def reason(backend, error, caught):
    """PyTorch's reason for refusing a call: the warning under the heading of the
    backend, else the error itself."""
    heading, found = "", ""
    for w in caught:
        text = str(w.message).split(" (Triggered internally")[0].strip()
        if "not used because" in text:
            heading = text.lower()
        elif backend in heading and not found:
            found = text
    return found or str(error).split("\n")[0] or type(error).__name__


class Peer:
    def __init__(self, backend, device):
        self.backend = backend
        self.where = device
        self.problem = None

    def hello(self, r):
        global torch
        me = {"name": "torch-" + self.backend if self.backend in (COPY, CPU) else self.backend}
        # Idle threads that spin would take the CPU from the other process in its turns.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        os.environ.setdefault("KMP_BLOCKTIME", "0")
        try:
            import torch
            from torch.nn.attention import SDPBackend, sdpa_kernel
        except ImportError as e:
            return dict(me, status="unsupported", reason="PyTorch 2.5 or newer is needed: %s" % e)
        kind = getattr(SDPBackend, BACKENDS.get(self.backend, ""), None)
        if kind is None and self.backend not in (COPY, FLEX):
            return dict(me, status="unsupported", reason="torch %s has no such backend" % torch.__version__)
        if self.where == "cuda" and not torch.cuda.is_available():
            return dict(me, status="unsupported", reason="torch %s finds no GPU" % torch.__version__)
        torch.set_grad_enabled(False)
        me["program"] = "torch %s Tensor.copy_" % torch.__version__
        if self.backend == FLEX:
            import torch._functorch.config
            torch._functorch.config.donated_buffer = False  # the graph of a forward pass is used again
            me.update(program="torch %s flex_attention, compiled" % torch.__version__, modifiers=True)
        if kind is not None:
            self.only = sdpa_kernel(kind)  # held: one that is collected undoes itself
            self.only.__enter__()
            me["program"] = "torch %s scaled_dot_product_attention" % torch.__version__
        if self.where == "cpu":
            torch.set_num_threads(threads())
            me["program"] += ", %d threads" % torch.get_num_threads()
            self.device = torch.device("cpu")
            return dict(me, device="cpu", timer="wall")
        index, uuid = self.find(r.get("uuid", ""))
        self.device = torch.device("cuda", index)
        torch.cuda.set_device(self.device)
        if self.backend == "cudnn":
            me["program"] += ", cuDNN %s" % torch.backends.cudnn.version()
        return dict(me, device=torch.cuda.get_device_name(index), uuid=uuid, timer="device")

    @staticmethod
    def find(wanted):
        """The GPU of that UUID, else the first. Versions of PyTorch that cannot
        tell say nothing of it."""
        def digits(u):
            return [c for c in str(u).lower() if c in "0123456789abcdef"]
        first = ""
        for i in range(torch.cuda.device_count()):
            uuid = str(getattr(torch.cuda.get_device_properties(i), "uuid", ""))
            if i == 0:
                first = uuid
            if uuid and digits(uuid) == digits(wanted):
                return i, uuid
        return 0, first

    def prepare(self, r):
        self.release(r)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                self.problem = self.kind(r)(self.backend, self.device, r)
                self.problem.once()
                answer = {"status": "ok", "memory_bytes": self.problem.memory, "checked": self.problem.check()}
                return dict(answer, **{"pass": r["pass"]}) if "pass" in r else answer
            except Refusal as e:
                return self.refuse(e.status, e)
            except (RuntimeError, TypeError, ValueError) as e:
                if "out of memory" in str(e):
                    return self.refuse("oom", "out of memory")
                if "CUDA error" in str(e):
                    raise  # nothing works after one
                return self.refuse("unsupported", reason(self.backend, e, caught))

    def kind(self, r):
        if self.backend == COPY:
            if "pass" in r:
                raise Refusal("unsupported", "a copy has no backward pass")
            return Copy
        return Gradients if "pass" in r else Sdpa

    def refuse(self, status, why):
        answer = {"status": status, "reason": str(why)}
        self.release(None)
        return answer

    def time(self, r):
        return {"ms": self.problem.time(r["n"])}

    def release(self, _):
        self.problem = None
        if torch is not None and self.where == "cuda":
            torch.cuda.empty_cache()  # the other process may want the memory
        return {}


def serve(peer, requests, answers):
    handlers = {"hello": peer.hello, "problem": peer.prepare, "time": peer.time, "release": peer.release,
                "end": peer.release}
    for line in iter(requests.readline, ""):
        r = json.loads(line)
        answer = handlers[r["op"]](r)
        answer["id"] = r["id"]
        print(json.dumps(answer), file=answers, flush=True)
        if r["op"] == "end":
            return


def main():
    parser = argparse.ArgumentParser(description="PyTorch's attention as a peer of vkattn bench")
    parser.add_argument("backend", choices=sorted(BACKENDS) + [FLEX, COPY])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu is for trying it out")
    options = parser.parse_args()
    # Answers alone go to standard output: what libraries print goes to the other.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        where = "cpu" if options.backend == CPU else options.device
        serve(Peer(options.backend, where), sys.stdin, answers)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
