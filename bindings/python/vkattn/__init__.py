"""Exact attention of NumPy arrays and PyTorch tensors, forward and gradients, on GPUs and on the CPU.

    import numpy as np, vkattn

    q = np.random.standard_normal((1, 8, 100, 64), np.float32)   # batch, heads, rows, head dim
    k = v = np.random.standard_normal((1, 2, 300, 64), np.float32)
    o, lse = vkattn.attention(q, k, v, causal="bottom-right", return_lse=True)
    d_q, d_k, d_v, *_ = vkattn.gradients(np.ones_like(o), q, k, v, o, lse, causal="bottom-right")

Both functions compute on the best device: a GPU, or the CPU if there is none. Device opens another one. For PyTorch
see sdpa, and the module vkattn.flash_attn.

Arrays are float16, float32, or bfloat16 of the package ml_dtypes. A view is taken as it is if its elements have
positive strides and its rows are contiguous, so transposing [batch, rows, heads, dim] costs nothing; others are copied.
Errors are ValueError, TypeError, NotImplementedError for what no tier of the device computes, MemoryError, and Error.
Several threads may compute at once: a call releases the interpreter's lock.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from typing import Any, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

from . import _library as _c
from ._library import Error

__all__ = ["attention", "gradients", "plan", "sdpa", "Device", "Error", "Gradients"]

_CAUSAL = {"none": 0, "top-left": 1, "bottom-right": 2}
_TIERS = {"auto": 0, "cpu": 1, "scalar": 2, "coopmat": 3, "coopmat2": 4, "cubin": 5, "cuda": 6, "no-cuda": 7}
_TUNINGS = {"auto": 0, "off": 1, "on": 2}
_DTYPES = {"float16": 0, "bfloat16": 1, "float32": 2}

_lock = threading.Lock()
_shared: Optional[_c.Library] = None
_default: Optional["Device"] = None


def _loaded() -> _c.Library:
    global _shared
    with _lock:
        if _shared is None:
            _shared = _c.Library()
        return _shared


class _Op:
    """An operation, which the last that refers to it destroys: the cache of its device, or a call. kind: "op" or "append"."""

    def __init__(self, device: "Device", config: Any, kind: str) -> None:
        self.handle = ctypes.c_void_p()
        self._library, self._kind = device._library, kind
        self._library.call(kind + "_create", device._handle, config, self.handle)

    def __del__(self) -> None:
        try:
            self._library.call(self._kind + "_destroy", self.handle)
        except Exception:  # with its device, or it was not made
            pass


class Device:
    """A device: the best GPU, or the CPU if there is none; "cpu"; "cuda", or "cuda:" and an ordinal or UUID, for a CUDA
    device without Vulkan; or the Vulkan device of an index, a UUID or part of a name. Close it, or use it in a with
    statement."""

    def __init__(self, name: Optional[str] = None) -> None:
        self._ops: dict[Any, _Op] = {}
        self._lock = threading.Lock()
        self._handle = ctypes.c_void_p()
        self._library = _loaded()
        if name is not None and not isinstance(name, str):
            raise TypeError(f"name is a {type(name).__name__}, want a str")
        if name == "cuda" or name and name.startswith("cuda:"):
            which = _text("name", name[len("cuda:") :]) or None
            self._library.call("device_open_cuda", _c.made(_c.Cuda, device=which), self._handle)
        else:
            options = _c.made(_c.DeviceOptions, cpu=int(name == "cpu"))
            if name not in (None, "auto", "cpu"):
                options.device = _text("name", name)
            self._library.call("device_open", options, self._handle)
        info = _c.made(_c.DeviceInfo)
        self._library.call("device_get_info", self._handle, info)
        self.name: str = info.name.decode()
        self.is_cpu: bool = info.kind == 0
        self.is_cuda: bool = info.kind == 2
        #: why the CPU was taken where no device was named
        self.why_cpu: str = info.why_cpu.decode()

    def __repr__(self) -> str:
        return f"<vkattn.Device {self.name}>"

    def close(self) -> None:
        """Closes the device. It raises Error while another thread computes on it. It may be called again."""
        with self._lock:
            if self._handle:
                self._library.call("device_destroy", self._handle)
                self._handle = ctypes.c_void_p()
                self._ops.clear()

    def __enter__(self) -> "Device":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _op(self, key: Tuple[Any, ...], config: Any, kind: str = "op") -> _Op:
        """The operation of a config, which the key names."""
        with self._lock:
            if not self._handle:
                raise ValueError("the device is closed")
            op = self._ops.get(key)
            if op is None:
                op = _Op(self, config, kind)
                if len(self._ops) >= 256:
                    del self._ops[next(iter(self._ops))]
                self._ops[key] = op
            return op


def _best() -> Device:
    global _default
    _loaded()
    with _lock:
        found = _default
    if found is None:
        opened = Device()
        with _lock:
            found = _default = _default or opened
    return found


_cpu: Optional["Device"] = None


def _or_cpu(f: Any) -> Any:
    """f, on the CPU if no device is named and the best one is a CUDA device that does not compute the call."""

    @functools.wraps(f)
    def call(*args: Any, **options: Any) -> Any:
        global _cpu
        try:
            return f(*args, **options)
        except NotImplementedError:
            named = options.get("device") is not None or options.get("tier", "auto") not in ("auto", "no-cuda", "cpu")
            if named or not _best().is_cuda:
                raise
        if _cpu is None:
            _cpu = Device("cpu")
        return f(*args, **{**options, "device": _cpu})

    return call


def _text(name: str, value: str) -> bytes:
    if not isinstance(value, str) or "\0" in value:
        raise TypeError(f"{name} is {value!r}, want a str")
    return value.encode()


def _choice(name: str, value: str, of: Mapping[str, int]) -> int:
    if value not in of:
        raise ValueError(f"{name} is {value!r}, want one of {', '.join(of)}")
    return of[value]


def _dtype(name: str, a: np.ndarray) -> int:
    if a.dtype.name not in _DTYPES:
        raise TypeError(f"{name} is of {a.dtype}, want float16, float32 or bfloat16")
    return _DTYPES[a.dtype.name]


class _Call:
    """The arguments of a call, and the arrays that they point to."""

    def __init__(self) -> None:
        self.keep: list[Any] = []

    def array(self, name: str, a: Any, ndim: int, dtype: Any = None, output: bool = False) -> np.ndarray:
        """The array as the library takes it: an output itself, an input that is no such array as a copy."""
        if not isinstance(a, np.ndarray):
            raise TypeError(f"{name} is a {type(a).__name__}, want a numpy.ndarray")
        if dtype is not None and a.dtype != dtype:
            raise TypeError(f"{name} is of {a.dtype}, want {np.dtype(dtype)}")
        if a.ndim != ndim:
            raise ValueError(f"{name} has shape {a.shape}, want {ndim} dimensions")
        taken = (
            a.dtype.isnative
            and all(s >= 0 and s % a.itemsize == 0 for s in a.strides)
            and (a.shape[-1] <= 1 or a.strides[-1] == a.itemsize)
        )
        if output and not (taken and a.flags.writeable):
            raise ValueError(f"{name} is not writeable, or its rows are not contiguous")
        if not taken:
            a = np.ascontiguousarray(a, a.dtype.newbyteorder("="))
        self.keep.append(a)
        return a

    def tensor(self, a: np.ndarray) -> Any:
        steps = [s // a.itemsize for s in a.strides[:3]]
        end = 0
        if a.size:
            end = a.shape[3] + sum((n - 1) * s for n, s in zip(a.shape, steps))
        return _c.Tensor(data=a.ctypes.data, bytes=end * a.itemsize, stride_batch=steps[0], stride_head=steps[1],
                         stride_row=steps[2], expanded=int(not any(steps)))  # fmt: skip

    def vector(self, name: str, a: Any, dtype: Any, size: Optional[int] = None) -> Any:
        """Numbers in memory. Sequences become arrays."""
        a = np.asarray(a)
        if a.dtype.kind not in ("iuf" if dtype == np.float32 else "iu"):
            raise TypeError(f"{name} is of {a.dtype}, want {np.dtype(dtype)}")
        if dtype == np.int32 and a.size and (a.min() < -(2**31) or a.max() >= 2**31):
            raise ValueError(f"{name} has a number beyond 32 bits")
        if size is not None and a.size != size:
            raise ValueError(f"{name} has {a.size} numbers, want {size}")
        a = np.ascontiguousarray(a, dtype)
        self.keep.append(a)
        return _c.Vector(data=a.ctypes.data, bytes=a.nbytes)

    def pointer(self, struct: Any) -> Any:
        self.keep.append(struct)
        return ctypes.pointer(struct)


class _Problem(_Call):
    """What attention and gradients share: the config and the arguments of the forward call."""

    def __init__(
        self, q: Any, k: Any, v: Any, *, device: Optional[Device], causal: Union[bool, str], scale: Optional[float],
        window: Optional[Tuple[int, int]], attention_chunk: int, align: str, softcap: float, dropout: float,
        dropout_seed: int, dropout_offset: int, dropout_state: Any, bias: Any, mask: Any, alibi: Any, sinks: Any, cu_q: Any, cu_k: Any,
        used_q: Any, used_k: Any, block_table: Any, score_mod: str, mask_mod: str,
        tables: Optional[Mapping[str, Any]], fixed_split: int, f32_o: bool, f32_gradients: bool, tier: str, tuning: str,
    ) -> None:  # fmt: skip
        super().__init__()
        self.q = self.array("q", q, 4)
        self.k = self.array("k", k, 4, q.dtype)
        self.v = self.array("v", v, 4, q.dtype)
        _dtype("q", self.q)
        self.dtype = self.q.dtype
        self.device = device if device is not None else _best()
        if not isinstance(self.device, Device):
            raise TypeError(f"device is a {type(device).__name__}, want a vkattn.Device")
        self._shape(cu_q, cu_k, used_q, used_k, block_table)
        self._config(causal, scale, window, align, tier, tuning, score_mod, mask_mod, tables,
                     attention_chunk=attention_chunk, softcap=softcap, dropout=dropout, fixed_split=fixed_split,
                     f32_o=int(bool(f32_o)), f32_gradients=int(bool(f32_gradients)))  # fmt: skip
        self._options(bias, mask, alibi, sinks, dropout_seed, dropout_offset, dropout_state)

    def _shape(self, cu_q: Any, cu_k: Any, used_q: Any, used_k: Any, block_table: Any) -> None:
        q, k, v = self.q, self.k, self.v
        b, hq, sq, d = q.shape
        hkv, sk = k.shape[1:3]
        if k.shape[3] != d:
            raise ValueError(f"k has shape {k.shape}, want {d} columns, as q has")
        if v.shape[:3] != k.shape[:3]:
            raise ValueError(f"v has shape {v.shape}, want {k.shape[:3]} and its columns")
        self.args = _c.made(_c.Args)
        varlen = _c.made(_c.Varlen)
        lengths = {"cu_q": cu_q, "cu_k": cu_k, "used_q": used_q, "used_k": used_k}
        if cu_q is not None:
            if b != 1:
                raise ValueError(f"q has shape {q.shape}, want [1, heads, rows, dim] with cu_q")
            varlen.total_q, b, sq = sq, np.size(cu_q) - 1, _longest("cu_q", cu_q)
        if cu_k is not None:
            if k.shape[0] != 1:
                raise ValueError(f"k has shape {k.shape}, want [1, heads, keys, dim] with cu_k")
            varlen.total_k, sk = sk, _longest("cu_k", cu_k)
        if block_table is not None:
            table = np.asarray(block_table)
            if table.ndim != 2 or table.shape[0] != b:
                raise ValueError(f"block_table has shape {table.shape}, want {b} rows")
            pages = _c.made(_c.Pages, table=self.vector("block_table", table, np.int32), stride=table.shape[1],
                            page_size=k.shape[2], count=k.shape[0])  # fmt: skip
            self.args.pages = self.pointer(pages)
            sk = table.shape[1] * k.shape[2]
        elif cu_k is None and k.shape[0] != b:
            raise ValueError(f"k has shape {k.shape}, want a batch of {b}")
        if cu_k is not None and np.size(cu_k) != b + 1:
            raise ValueError(f"cu_k has {np.size(cu_k)} numbers, want {b + 1}")
        for name, x in lengths.items():
            if x is not None:
                setattr(varlen, name, self.vector(name, x, np.int32, b + 1 if name.startswith("cu") else b))
                self.args.varlen = self.pointer(varlen)
        self.args.shape = _c.Shape(b, hq, hkv, sq, sk)
        self.args.q, self.args.k, self.args.v = (self.tensor(x) for x in (q, k, v))

    def _config(
        self, causal: Union[bool, str], scale: Optional[float], window: Optional[Tuple[int, int]], align: str, tier: str,
        tuning: str, score_mod: str, mask_mod: str, tables: Optional[Mapping[str, Any]], **numbers: Any,
    ) -> None:  # fmt: skip
        s = self.args.shape
        if isinstance(causal, (bool, np.bool_)):
            if causal and s.sq != s.sk:
                raise ValueError(f"causal is True for {s.sq} rows and {s.sk} keys: name top-left or bottom-right")
            causal = "top-left" if causal else "none"
        left, right = window if window is not None else (0, 0)
        members = dict(
            numbers, dtype=_DTYPES[self.dtype.name], head_dim=self.q.shape[3], head_dim_v=self.v.shape[3],
            causal=_choice("causal", causal, _CAUSAL), align=_choice("align", align, _CAUSAL),
            tier=_choice("tier", tier, _TIERS), tuning=_choice("tuning", tuning, _TUNINGS),
            has_scale=int(scale is not None), scale=0.0 if scale is None else scale,
            has_window=int(window is not None), window_left=left, window_right=right,
        )  # fmt: skip
        for name, value in members.items():
            real = name in ("scale", "softcap", "dropout")
            if not isinstance(value, (int, np.integer)) and not (real and isinstance(value, (float, np.floating))):
                raise TypeError(f"{name} is {value!r}, want a number")
            if not real and not -(2**31) <= value < 2**31:
                raise ValueError(f"{name} is {value}, beyond 32 bits")
        texts = {"score_mod": _text("score_mod", score_mod), "mask_mod": _text("mask_mod", mask_mod)}
        types, memory = [], []
        self.table_shapes: dict[str, Tuple[int, ...]] = {}
        for name, x in (tables or {}).items():
            x = np.asarray(x)
            number = np.float32 if x.dtype.kind == "f" else np.int32
            if not 1 <= x.ndim <= 3:
                raise ValueError(f"table {name} has shape {x.shape}, want 1 to 3 axes")
            self.table_shapes[name] = x.shape
            types.append(_c.TableType(_text("tables", name), x.ndim, int(number is np.float32)))
            dims = (ctypes.c_int64 * 3)(*x.shape)
            memory.append(_c.Table(self.vector(f"table {name}", x, number), _text("tables", name), dims))
        config = _c.made(_c.Config, **members, **texts)
        if types:
            declared, given = (_c.TableType * len(types))(*types), (_c.Table * len(memory))(*memory)
            self.keep += [declared, given]
            config.tables, config.table_count = declared, len(types)
            self.args.tables, self.args.table_count = given, len(memory)
        key = (*members.values(), *texts.values(), *((t.name, t.rank, t.is_float) for t in types))
        self.o_dtype = np.dtype(np.float32) if members["f32_o"] else self.dtype
        self.gradient_dtype = np.dtype(np.float32) if members["f32_gradients"] else self.dtype
        self.op = self.device._op(key, config)

    def _options(self, bias: Any, mask: Any, alibi: Any, sinks: Any, dropout_seed: int, dropout_offset: int, dropout_state: Any) -> None:
        hq = self.args.shape.hq
        self.bias_shape: Optional[Tuple[int, ...]] = None
        if bias is not None:
            bias = self.array("bias", bias, 4)
            self.bias_shape = self._broadcast("bias", bias)
            sizes = dict(zip(("batches", "heads", "rows"), bias.shape))
            self.args.bias = self.pointer(_c.made(_c.Bias, tensor=self.tensor(bias), dtype=_dtype("bias", bias), **sizes))
        if mask is not None:
            mask = self.array("mask", mask, 4, np.bool_)
            self._broadcast("mask", mask)
            sizes = dict(zip(("batches", "heads", "rows"), mask.shape))
            self.args.mask = self.pointer(_c.made(_c.Mask, tensor=self.tensor(mask), **sizes))
        self.sinks = sinks is not None
        slopes = hq
        if np.ndim(alibi) == 2:
            slopes, self.args.alibi_per_sequence = self.args.shape.b * hq, 1
        for name, x, n in (("alibi", alibi, slopes), ("sinks", sinks, hq)):
            if x is not None:
                setattr(self.args, name, self.vector(name, x, np.float32, n))
        for name, n, bits in (("dropout_seed", dropout_seed, 64), ("dropout_offset", dropout_offset, 32)):
            if not isinstance(n, (int, np.integer)) or not 0 <= n < 2**bits:
                raise ValueError(f"{name} is {n!r}, want an integer of {bits} bits")
            setattr(self.args, name, int(n))
        if dropout_state is not None:
            self.args.dropout_state = self.vector("dropout_state", dropout_state, np.uint64, 2)

    def _broadcast(self, name: str, a: np.ndarray) -> Tuple[int, ...]:
        s = self.args.shape
        for n, full in zip(a.shape, (s.b, s.hq, s.sq)):
            if n not in (1, full):
                raise ValueError(f"{name} has shape {a.shape}, want {[s.b, s.hq, s.sq, s.sk]} or 1 in its place")
        if a.shape[3] != s.sk:
            raise ValueError(f"{name} has {a.shape[3]} columns, want {s.sk}")
        return a.shape

    def o_shape(self) -> Tuple[int, ...]:
        return (*self.q.shape[:3], self.v.shape[3])

    def output(self, name: str, out: Optional[np.ndarray], shape: Tuple[int, ...], dtype: Any) -> np.ndarray:
        """The array of an output: out, or a new one of zeros."""
        if out is None:
            out = np.zeros(shape, dtype)
            self.keep.append(out)
            return out
        out = self.array(name, out, len(shape), dtype, output=True)
        if out.shape != shape:
            raise ValueError(f"{name} has shape {out.shape}, want {shape}")
        return out

    def rows(self, a: np.ndarray) -> Any:
        """LSE or its gradient."""
        self.keep.append(a)
        return _c.Tensor(data=a.ctypes.data, bytes=a.nbytes)

    def call(self, function: str, *args: Any) -> None:
        self.device._library.call(function, self.op.handle, *args)


def _longest(name: str, cumulative: Any) -> int:
    x = np.asarray(cumulative)
    if x.ndim != 1 or x.size < 1 or x.dtype.kind not in "iu":
        raise ValueError(f"{name} is no list of cumulative lengths")
    return max(1, int(np.diff(x.astype(np.int64)).max(initial=0)))


_DEFAULTS: dict[str, Any] = dict(
    device=None, causal=False, scale=None, window=None, attention_chunk=0, align="none", softcap=0.0, dropout=0.0,
    dropout_seed=0, dropout_offset=0, dropout_state=None, bias=None, mask=None, alibi=None, sinks=None, cu_q=None, cu_k=None, used_q=None,
    used_k=None, block_table=None, score_mod="", mask_mod="", tables=None, fixed_split=0, f32_o=False,
    f32_gradients=False, tier="auto", tuning="auto",
)  # fmt: skip


def _problem(q: Any, k: Any, v: Any, options: dict[str, Any]) -> _Problem:
    for name in options:
        if name not in _DEFAULTS:
            raise TypeError(f"no option {name}: there are {', '.join(_DEFAULTS)}")
    return _Problem(q, k, v, **{**_DEFAULTS, **options})


@_or_cpu
def attention(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, *, return_lse: bool = False, return_max_logits: bool = False,
    out: Optional[np.ndarray] = None, **options: Any
) -> Union[np.ndarray, Tuple[np.ndarray, ...]]:  # fmt: skip
    """Returns softmax(scale * q kᵀ, masked) v.

    q is [batch, query heads, rows, dim], k and v are [batch, key heads, keys, dim]; the number of query heads is a
    multiple of that of key heads, and v may have other columns. The result is of the dtype of q. out takes it.
    With return_lse the log-sum-exp of each row comes too: float32 [batch, query heads, rows], natural logarithm. With
    return_max_logits so does the largest score of each head, behind all modifiers: float32 [query heads].

    Options:
      causal        "top-left" (key <= row), "bottom-right" (the last row sees the last key); True where rows == keys
      scale         factor on q kᵀ; None: 1/sqrt(dim)
      window        (left, right): keys before and after a row's position; -1: all. Without causal it takes align
      attention_chunk   keys of a chunk, as in Llama 4; it takes causal
      align         "top-left" or "bottom-right" for window and alibi without causal
      softcap       scores become softcap * tanh(score / softcap); 0: none
      bias          added to the scores: [batch, heads, rows, keys], each of the first three may be 1
      mask          bool [batch, heads, rows, keys], likewise: False excludes
      alibi, sinks  a slope, and an additional logit, for each query head; slopes may be [batch, query heads]
      cu_q, cu_k    cumulative lengths of packed sequences: q is [1, heads, all rows, dim]
      used_q, used_k    rows and keys in use of each sequence
      block_table   pages of each sequence: k and v are [pages, key heads, page size, dim]
      dropout, dropout_seed, dropout_offset   probability below 1, and what chooses the mask
      dropout_state  uint64 [2], a seed and an offset that are added to those
      score_mod, mask_mod, tables   expressions, and a dict of the tables that they read (docs/modifiers.md)
      fixed_split   splits of the keys; with it the bits of a sequence do not depend on the batch
      f32_o         the result is float32 for 16-bit arrays too
      tier          "auto", "cpu", "scalar", "coopmat", "coopmat2", "cubin", "cuda" or "no-cuda"
      tuning        "auto", "off" or "on"
      device        a Device; None: the best one
    """
    p = _problem(q, k, v, options)
    o = p.output("out", out, p.o_shape(), p.o_dtype)
    p.args.o = p.tensor(o)
    lse = None
    if return_lse:
        lse = np.zeros(o.shape[:3], np.float32)
        p.args.lse = p.rows(lse)
    results = [o] if lse is None else [o, lse]
    if return_max_logits:
        results.append(np.zeros(o.shape[1], np.float32))
        p.args.max_logits = _c.Vector(data=results[-1].ctypes.data, bytes=results[-1].nbytes)
    p.call("op_forward", None, p.args)
    return o if len(results) == 1 else tuple(results)


class _Gradients(NamedTuple):
    d_q: Optional[np.ndarray]
    d_k: Optional[np.ndarray]
    d_v: Optional[np.ndarray]
    d_bias: Optional[np.ndarray]
    d_sinks: Optional[np.ndarray]


class Gradients(_Gradients):
    """What gradients returns. None was not asked for. d_tables has the gradients of tables by name and is no item."""

    d_tables: Mapping[str, np.ndarray] = {}


@_or_cpu
def gradients(
    d_o: np.ndarray, q: np.ndarray, k: np.ndarray, v: np.ndarray, o: np.ndarray, lse: np.ndarray, *,
    d_lse: Optional[np.ndarray] = None, of: Sequence[str] = ("q", "k", "v"), partial_keys: bool = False, **options: Any,
) -> Gradients:  # fmt: skip
    """Returns the gradients of the arrays that `of` names: "q", "k", "v", "bias" and "sinks", and
    "tables.t" for table t of score_mod.

    d_o is the gradient of o, d_lse that of lse. o and lse are those that attention returned with the same arrays and
    options. The bits are the same in every run. With f32_gradients those of q, k and v are float32 for 16-bit arrays.
    partial_keys says that o and lse are of more keys than k holds, as in ring attention."""
    p = _problem(q, k, v, options)
    p.args.o = p.tensor(_same("o", p.array("o", o, 4, p.o_dtype), p.o_shape()))
    p.args.lse = p.rows(np.ascontiguousarray(_same("lse", p.array("lse", lse, 3, np.float32), p.o_shape()[:3])))
    back = _c.made(_c.BackwardArgs, forward=ctypes.pointer(p.args), partial_keys=int(bool(partial_keys)))
    back.d_o = p.tensor(_same("d_o", p.array("d_o", d_o, 4, p.dtype), p.o_shape()))
    if d_lse is not None:
        d_lse = np.ascontiguousarray(_same("d_lse", p.array("d_lse", d_lse, 3, np.float32), p.o_shape()[:3]))
        back.d_lse = p.rows(d_lse)
    results: dict[str, Optional[np.ndarray]] = dict.fromkeys(("q", "k", "v", "bias", "sinks"))
    d_tables: dict[str, np.ndarray] = {}
    for name in of:
        if name.startswith("tables."):
            table = name[len("tables.") :]
            if table not in p.table_shapes:
                raise ValueError(f"of has {name!r}, and there is no table {table}")
            d_tables[table] = np.zeros(p.table_shapes[table], np.float32)
            continue
        if name not in results:
            raise ValueError(f"of has {name!r}, want some of {', '.join(results)}")
        if name in ("bias", "sinks"):
            if name == "bias" and p.bias_shape is None or name == "sinks" and not p.sinks:
                raise ValueError(f"of has {name!r}, and there is no {name}")
            shape = p.bias_shape if name == "bias" else (p.args.shape.hq,)
            x = np.zeros(shape, np.float32)
        else:
            x = np.zeros({"q": p.q, "k": p.k, "v": p.v}[name].shape, p.gradient_dtype)
        results[name] = x
        if name == "sinks":
            back.d_sinks = _c.Vector(data=x.ctypes.data, bytes=x.nbytes)
        else:
            setattr(back, "d_" + name, p.tensor(x))
    outputs = [_c.Table(_c.Vector(data=x.ctypes.data, bytes=x.nbytes), _text("of", t)) for t, x in d_tables.items()]
    given = (_c.Table * len(outputs))(*outputs)
    if outputs:
        back.d_tables, back.d_table_count = given, len(outputs)
    p.call("op_backward", None, back)
    found = Gradients(*results.values())
    found.d_tables = d_tables
    return found


@_or_cpu
def plan(q: np.ndarray, k: np.ndarray, v: np.ndarray, **options: Any) -> str:
    """Tells how attention would compute the call: the tier, the kernel, and why faster tiers do not run it."""
    p = _problem(q, k, v, options)
    p.args.o = p.tensor(p.output("out", None, p.o_shape(), p.o_dtype))
    found = _c.made(_c.Plan)
    p.call("op_plan", p.args, found)
    return found.text.decode("utf-8", "replace")


def sdpa(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
    scale: Optional[float] = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    """torch.nn.functional.scaled_dot_product_attention with its arguments and result, of PyTorch tensors on a CUDA device
    or the CPU: query [batch, heads, rows, dim]. attn_mask has no gradient.
    A row that attends to no key is 0."""
    from . import _torch

    return _torch.sdpa(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)


def _same(name: str, a: np.ndarray, shape: Tuple[int, ...]) -> np.ndarray:
    if a.shape != shape:
        raise ValueError(f"{name} has shape {a.shape}, want {shape}")
    return a
