"""The launch tables of cudapath/kernels, and the kernels launched on PyTorch's tensors.

Used by cuda_peer.py. The structs mirror attn.h.
"""
import ctypes
import gzip
import json
import math
import os

import torch

from cuda_judge import TYPES, blank, f32

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
