#!/usr/bin/env python3
"""peer_torch.py BACKEND [--device cuda|cpu]

PyTorch's scaled_dot_product_attention as a peer of "vkattn bench":

    vkattn bench --peer "python3 scripts/peer_torch.py flash" --peer "python3 scripts/peer_torch.py cudnn"

BACKEND is flash, cudnn, efficient or math, or copy: not attention, but a copy on
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
import json
import os
import random
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
        self.arguments = arguments(backend, p)
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
        self.results[self.next] = torch.nn.functional.scaled_dot_product_attention(q, k, v, **self.arguments)
        self.next = (self.next + 1) % len(self.sets)

    def check(self):
        """Compares rows of set 0 with float64; plain attention in the storage
        type is the measure of what error is allowed, as in vkattn's own checks.
        """
        p = self.p
        q, k, v = self.sets[0]
        rng = random.Random(p["seed"])
        sq, sk, group = p["seqlen_q"], p["seqlen_k"], p["heads"] // p["heads_kv"]
        rows = sorted({0, sq // 2, sq - 1} | {rng.randrange(sq) for _ in range(61)})
        last = {"none": sk, "top-left": 0, "bottom-right": sk - sq}[p["causal"]]  # key of row 0
        at = torch.tensor(rows, device=self.device)
        hidden = torch.arange(sk, device=self.device)[None, :] > at[:, None] + last
        heads = sorted({(0, 0), (p["batch"] - 1, p["heads"] - 1), (rng.randrange(p["batch"]), rng.randrange(p["heads"]))})
        got, ref, low = [], [], []
        for b, h in heads:
            x, y, z = q[b, h, at], k[b, h // group], v[b, h // group]
            got.append(self.results[0][b, h, at].double())
            s = (x.double() @ y.double().T * p["scale"]).masked_fill(hidden, float("-inf"))
            ref.append(torch.softmax(s, -1) @ z.double())
            s = (x.float() @ y.float().T * p["scale"]).to(self.dtype).masked_fill(hidden, float("-inf"))
            w = torch.softmax(s.float(), -1).to(self.dtype)
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
            return torch.nn.functional.scaled_dot_product_attention(*self.sets[i], **self.arguments)

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
        last = {"none": sk, "top-left": 0, "bottom-right": sk - sq}[p["causal"]]
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
                    hidden = torch.arange(sk, device=self.device)[None, :] > torch.arange(at, to, device=self.device)[:, None] + last
                    w = rounded(torch.softmax(rounded(x @ y.T * p["scale"]).masked_fill(hidden, float("-inf")), -1))
                    dp = rounded(up @ z.T)
                    ds = rounded(w * (dp - (w * dp).sum(-1, keepdim=True)))
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
        if kind is None and self.backend != COPY:
            return dict(me, status="unsupported", reason="torch %s has no such backend" % torch.__version__)
        if self.where == "cuda" and not torch.cuda.is_available():
            return dict(me, status="unsupported", reason="torch %s finds no GPU" % torch.__version__)
        torch.set_grad_enabled(False)
        me["program"] = "torch %s Tensor.copy_" % torch.__version__
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
    parser.add_argument("backend", choices=sorted(BACKENDS) + [COPY])
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
