"""Attention of PyTorch tensors, which vkattn.flash_attn and vkattn.sdpa call: on a CUDA device in place, on its current
stream; on the CPU in place too."""

from __future__ import annotations

import ctypes
import os
import struct
import threading
import time
from typing import Any, Optional, Tuple

import torch

from . import Device
from . import _library as _c

Tensor = torch.Tensor

_DTYPES = {torch.float16: 0, torch.bfloat16: 1, torch.float32: 2}
_NONE, _TOP_LEFT, _BOTTOM_RIGHT = range(3)
_BUSY = 7
_direct: Any = None  # libvkattn_torch.so, if PyTorch takes it

def _stream_of(index: int) -> int:
    return int(torch.cuda.current_stream(index).cuda_stream)


_current_stream = getattr(torch._C, "_cuda_getCurrentRawStream", _stream_of)
_compiling = getattr(getattr(torch, "compiler", None), "is_compiling", lambda: False)
_lock = threading.Lock()
_devices: "dict[Any, _Place]" = {}


class _Place:
    """A device of the library, with its handles of streams."""

    def __init__(self, index: Optional[int]) -> None:
        self.device = Device("cpu" if index is None else f"cuda:{index}")
        self.index = index
        self.library = self.device._library
        names = ("op_forward", "op_backward", "call_run", "append_forward")
        self.op_forward, self.op_backward, self.call_run, self.append_forward = (self.library.function(x) for x in names)
        self.streams: "dict[int, ctypes.c_void_p]" = {}
        self.prepared: "set[Any]" = set()  # of prepare_once

    def stream(self) -> Optional[ctypes.c_void_p]:
        """The handle of the current stream; None on the CPU."""
        if self.index is None:
            return None
        current = _current_stream(self.index)
        found = self.streams.get(current)
        if found is None:
            with _lock:
                found = self.streams.get(current)
                if found is None:
                    handle = ctypes.c_void_p()
                    self.library.call("stream_wrap_cuda", self.device._handle, current or None, handle)
                    found = self.streams[current] = handle
                    if _direct:
                        _direct.vkattn_torch_add_stream(self.index, current, handle)
        return found

    def run(self, function: Any, handle: Any, args: Any) -> None:
        """Calls op_forward, op_backward, call_run or append_forward."""
        stream = self.stream()
        while status := function(handle, stream, args):
            if status != _BUSY:
                self.library.check(status)
            time.sleep(0)  # another thread is in a call on the stream

    def prepare(self, function: str, op: Any, args: Any) -> bool:
        """Allocates a workspace for the stream of a CUDA graph. It returns False, and allocates nothing, while a graph is captured."""
        if self.index is None:
            return True
        if torch.cuda.is_current_stream_capturing():
            return False
        self.library.call(function, op.handle, args)
        return True

    def prepare_once(self, function: str, op: Any, args: Any, *shape: Any) -> None:
        """prepare of the first call of a shape."""
        key = (function, id(op), *shape)
        if key not in self.prepared and self.prepare(function, op, args):
            if len(self.prepared) >= 1024:
                self.prepared.clear()
            self.prepared.add(key)


def _place(t: Tensor) -> _Place:
    kind = t.device.type
    index: Any = t.device.index if kind == "cuda" else None if kind == "cpu" else kind
    found = _devices.get(index)
    if found is None:
        if kind not in ("cpu", "cuda"):
            raise NotImplementedError(f"tensors on {t.device}: there are cpu and cuda")
        with _lock:
            found = _devices.get(index)
            if found is None:
                found = _devices[index] = _Place(index)
    return found


def _rows(t: Tensor) -> Tensor:
    """t, or a copy of it whose rows are contiguous."""
    return t if t.stride(-1) == 1 or t.shape[-1] == 1 else t.contiguous()


def _tensor(t: Tensor) -> Any:
    """A tensor of four dimensions as the library takes it."""
    n0, n1, n2, n3 = t.shape
    s0, s1, s2, _ = t.stride()
    n = ((n0 - 1) * s0 + (n1 - 1) * s1 + (n2 - 1) * s2 + n3) * t.element_size()
    return _c.Tensor(None, t.data_ptr(), n, 0, s0, s1, s2, 0 if s0 or s1 or s2 else 1)


def _vector(t: Tensor) -> Any:
    return _c.Vector(None, t.data_ptr(), t.numel() * t.element_size(), 0)


def _like_q(q: Tensor, dim: int) -> Tensor:
    """An output with the rows and the order of dimensions of q."""
    b, h, s, _ = q.shape
    if q.stride(1) < q.stride(2):  # [batch, rows, heads, dim]
        return q.new_empty((b, s, h, dim)).transpose(1, 2)
    return q.new_empty((b, h, s, dim))


class _Call:
    """The operation and the arguments of a call, but for O and LSE."""

    def __init__(
        self, q: Tensor, k: Tensor, v: Tensor, cu_q: Optional[Tensor], cu_k: Optional[Tensor], used_k: Optional[Tensor],
        block_table: Optional[Tensor], max_q: int, max_k: int, causal: int, left: int, right: int, softcap: float, scale: float, alibi: Optional[Tensor], bias: Optional[Tensor],
        mask: Optional[Tensor], dropout: float, seed: Optional[Tensor], sinks: Optional[Tensor],
    ) -> None:  # fmt: skip
        self.place = place = _place(q)
        self.keep: "list[Any]" = []
        d, dv = q.shape[3], v.shape[3]
        key = ("torch", q.dtype, d, dv, causal, left, right, softcap, scale, dropout, alibi is None)
        op = place.device._ops.get(key)
        if op is None:
            windowed = left >= 0 or right >= 0
            config = _c.made(
                _c.Config, dtype=_DTYPES[q.dtype], head_dim=d, head_dim_v=dv, causal=causal, has_scale=1, scale=scale,
                softcap=softcap, dropout=dropout, has_window=int(windowed), window_left=left if windowed else 0,
                window_right=right if windowed else 0,
                align=_BOTTOM_RIGHT if not causal and (windowed or alibi is not None) else 0,
            )  # fmt: skip
            op = place.device._op(key, config)
        self.op = op
        a = self.args = _c.Args()
        a.size = ctypes.sizeof(_c.Args)
        batch = q.shape[0] if cu_q is None else cu_q.numel() - 1
        a.shape = _c.Shape(batch, q.shape[1], k.shape[1], max_q, max_k)
        a.q, a.k, a.v = _tensor(q), _tensor(k), _tensor(v)
        if cu_q is not None or used_k is not None:
            lengths = _c.made(_c.Varlen)
            if cu_q is not None:
                lengths.cu_q, lengths.total_q = _vector(cu_q), q.shape[2]
            if cu_k is not None:
                lengths.cu_k, lengths.total_k = _vector(cu_k), k.shape[2]
            if used_k is not None:
                lengths.used_k = _vector(used_k)
            self.keep.append(lengths)
            a.varlen = ctypes.pointer(lengths)
        if block_table is not None:
            pages = _c.made(_c.Pages, table=_vector(block_table), stride=block_table.shape[1], page_size=k.shape[2], count=k.shape[0])
            self.keep.append(pages)
            a.pages = ctypes.pointer(pages)
        if alibi is not None:
            a.alibi, a.alibi_per_sequence = _vector(alibi), int(alibi.dim() == 2)
        if sinks is not None:
            a.sinks = _vector(sinks)
        for name, struct, t in (("bias", _c.Bias, bias), ("mask", _c.Mask, mask)):
            if t is not None:
                sizes = dict(zip(("batches", "heads", "rows"), t.shape))
                if name == "bias":
                    sizes["dtype"] = _DTYPES[t.dtype]
                option = _c.made(struct, tensor=_tensor(t), **sizes)
                self.keep.append(option)
                setattr(a, name, ctypes.pointer(option))
        if seed is not None:
            a.dropout_state = _vector(seed)


class _Known(ctypes.Structure):
    """known of torch.c."""

    _fields_ = [(n, ctypes.c_void_p) for n in ("run", "forward", "backward")] + [(n, ctypes.c_int64 * 4) for n in ("o", "d_q", "d_k", "d_v")]


# functions of torch.c.
_INTERFACE = [
    "call_dispatcher", "check", "delete_tensor_object", "empty_strided", "get_data_ptr", "get_dim", "get_sizes", "get_strides", "get_dtype",
    "get_device_type", "get_device_index", "get_current_cuda_stream", "dtype_float32", "device_type_cpu",
]  # fmt: skip


def _register_direct() -> "list[str]":
    """Makes the operators plain_forward and plain_backward those of torch.c, on the devices that it returns."""
    global _direct
    path = os.path.join(os.path.dirname(__file__), "libvkattn_torch.so")
    if not os.path.exists(path) or tuple(int(x) for x in torch.__version__.split(".")[:2]) < (2, 9):
        return []
    of_cuda = os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cuda.so")
    its, ours = [ctypes.CDLL(x) for x in (torch._C.__file__, of_cuda) if os.path.exists(x)], ctypes.CDLL(path)

    def address(name: str) -> Optional[int]:
        return next((ctypes.cast(getattr(x, name), ctypes.c_void_p).value for x in its if hasattr(x, name)), None)

    functions = {name: address("aoti_torch_" + name) for name in _INTERFACE}
    init, impl = address("aoti_torch_library_init_impl"), address("aoti_torch_library_impl")
    if not init or not impl or not all(of or name == "get_current_cuda_stream" for name, of in functions.items()):
        return []
    ours.vkattn_torch_register.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_char_p]
    ours.vkattn_torch_add.argtypes, ours.vkattn_torch_add.restype = [ctypes.POINTER(_Known)], None
    ours.vkattn_torch_add_stream.argtypes, ours.vkattn_torch_add_stream.restype = [ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p], None
    table = (ctypes.c_void_p * (len(functions) + 1))(*functions.values(), address("torch_exception_get_what_without_backtrace"))
    devices = ["cpu", "cuda"] if functions["get_current_cuda_stream"] else ["cpu"]
    for device in devices:
        if ours.vkattn_torch_register(table, init, impl, device.upper().encode()):
            raise ImportError(f"PyTorch {torch.__version__} does not take the operators of {path}")
    _direct = ours
    return devices


_pack = {n: struct.Struct(f"{n}Q").pack for n in (5, 10)}  # addresses, as call_run takes them


class _Plain:
    """Calls of one layout without further tensors. Most of a small call's time is the host's, and autograd's thread finds
    little in its caches: the library keeps the arguments but for the addresses."""

    def __init__(self, rows_first: bool, q: Tensor, k: Tensor, v: Tensor, causal: int, left: int, right: int, softcap: float, scale: float) -> None:
        def wide(t: Tensor) -> Tensor:
            return t.transpose(1, 2) if rows_first else t

        self.calls: "list[Any]" = []
        c = _Call(*(wide(t) for t in (q, k, v)), None, None, None, None, wide(q).shape[2], wide(k).shape[2], causal, left, right, softcap,
                  scale, None, None, None, 0.0, None, None)  # fmt: skip
        self.place, self.op = c.place, c.op
        o = _like_q(wide(q), v.shape[3])
        self.o_shape, self.o_stride = wide(o).shape, wide(o).stride()
        self.o_is_like_q = self.o_shape == q.shape and self.o_stride == torch.empty_like(q).stride()
        self.lse_shape = o.shape[:3]
        c.args.o = _tensor(o)
        self.without_lse = self.call("forward", c.args)
        self.place.prepare("op_prepare", self.op, c.args)
        c.args.lse.bytes = self.lse_shape.numel() * 4
        self.with_lse = self.call("forward", c.args)
        gradients = [wide(torch.empty_like(t)) for t in (q, k, v)]  # at addresses that do not overlap, as prepare wants them
        d_q, d_k, d_v = (_tensor(t) for t in gradients)
        self.back = _c.made(_c.BackwardArgs, forward=ctypes.pointer(c.args), d_o=_tensor(o), d_q=d_q, d_k=d_k, d_v=d_v)
        self.gradients = self.call("backward", self.back)
        c.args.lse.data = o.data_ptr()  # nothing reads it
        self.prepared = False
        strides = [(ctypes.c_int64 * 4)(*x.stride()) for x in (o, *gradients)]
        self.known = _Known(ctypes.cast(self.place.call_run, ctypes.c_void_p), self.with_lse, self.gradients, *strides)

    def tell(self) -> "_Plain":
        """Lets torch.c make such calls, if it has asked for this one."""
        if _direct:
            _direct.vkattn_torch_add(self.known)
        return self

    def call(self, which: str, args: Any) -> Any:
        handle = ctypes.c_void_p()
        self.place.library.call("call_create_" + which, self.op.handle, args, handle)
        self.calls.append(handle)
        return handle

    def __del__(self) -> None:
        for handle in self.calls:
            self.place.library.function("call_destroy")(handle)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, with_lse: bool) -> Tuple[Tensor, Optional[Tensor]]:
        o = torch.empty_like(q) if self.o_is_like_q else q.new_empty_strided(self.o_shape, self.o_stride)
        place = self.place
        if not with_lse:
            place.run(place.call_run, self.without_lse, _pack[5](q.data_ptr(), k.data_ptr(), v.data_ptr(), o.data_ptr(), 0))
            return o, None
        lse = q.new_empty(self.lse_shape, dtype=torch.float32)
        place.run(place.call_run, self.with_lse, _pack[5](q.data_ptr(), k.data_ptr(), v.data_ptr(), o.data_ptr(), lse.data_ptr()))
        return o, lse

    def backward(self, d_o: Tensor, o: Tensor, lse: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tuple[Tensor, Tensor, Tensor]:
        o, d_o = (x if x.stride() == self.o_stride else torch.empty_strided(self.o_shape, self.o_stride, dtype=x.dtype, device=x.device).copy_(x) for x in (o, d_o))
        d_q, d_k, d_v = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        place = self.place
        data = _pack[10](q.data_ptr(), k.data_ptr(), v.data_ptr(), o.data_ptr(), lse.data_ptr(), d_o.data_ptr(), 0, d_q.data_ptr(), d_k.data_ptr(), d_v.data_ptr())
        place.run(place.call_run, self.gradients, data)
        self.prepared = self.prepared or place.prepare("op_prepare_backward", self.op, self.back)
        return d_q, d_k, d_v


_plains: "dict[Any, _Plain]" = {}


def _layout(rows_first: bool, q: Tensor, k: Tensor, v: Tensor, causal: int, left: int, right: int, softcap: float, scale: float) -> Any:
    """The key of calls like one with these arguments of _Plain."""
    return (rows_first, q.shape, k.shape, v.shape, q.stride(), k.stride(), v.stride(), q.dtype, k.dtype, v.dtype, q.device, k.device,
            v.device, causal, left, right, softcap, scale)  # fmt: skip


def _plain(*of: Any) -> _Plain:
    """Of a call that has been checked."""
    key = _layout(*of)
    found = _plains.get(key)
    if found is None:
        if len(_plains) >= 1024:
            _plains.clear()
        found = _plains[key] = _Plain(*of)
    return found


def _is_plain(cu_q: Any, cu_k: Any, used_k: Any, block_table: Any, alibi: Any, bias: Any, mask: Any, dropout: float, sinks: Any) -> bool:
    """Whether a call has no further tensors, and no dropout."""
    return cu_q is None and used_k is None and block_table is None and alibi is None and bias is None and mask is None and not dropout and sinks is None


def _forward(q: Tensor, k: Tensor, v: Tensor, *rest: Any, max_logits: Optional[Tensor] = None) -> Tuple[Tensor, Tensor]:
    """O and LSE of [batch, heads, rows, dim], or of packed sequences [1, heads, all rows, dim]."""
    if q.numel() and k.numel() and v.numel() and max_logits is None and _is_plain(*rest[:4], *rest[11:15], rest[16]):
        return _plain(False, q, k, v, *rest[6:11]).forward(q, k, v, True)  # type: ignore[return-value]
    o = _like_q(q, v.shape[3])
    lse, sinks = q.new_empty(q.shape[:3], dtype=torch.float32), rest[-1]
    if max_logits is not None and (k.shape[2] == 0 or o.numel() == 0):
        max_logits.fill_(-float("inf"))
    if k.shape[2] == 0:
        return o.zero_(), lse.fill_(-float("inf")) if sinks is None else lse.copy_(sinks[None, :, None])
    if o.numel() == 0:
        return o, lse.fill_(-float("inf"))
    c = _Call(q, k, v, *rest)
    c.args.o = _tensor(o)
    c.args.lse = _c.Tensor(None, lse.data_ptr(), lse.numel() * 4, 0, 0, 0, 0, 0)
    if max_logits is not None:
        c.args.max_logits = _vector(max_logits)
    c.place.run(c.place.op_forward, c.op.handle, c.args)
    if rest[4] <= 8:  # decode kernels, which split the keys
        c.place.prepare_once("op_prepare", c.op, c.args, q.shape, k.shape, *rest[4:6])
    return o, lse


def _backward(d_o: Tensor, o: Tensor, lse: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Tuple[Tensor, Tensor, Tensor]:
    if q.numel() and k.numel() and v.numel() and _is_plain(*rest[:4], *rest[11:15], rest[16]):
        return _plain(False, q, k, v, *rest[6:11]).backward(d_o, o, lse.contiguous(), q, k, v)
    d_o, lse = _rows(d_o), lse.contiguous()
    d_q, d_k, d_v = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    if o.numel() == 0 or k.numel() == 0 or v.numel() == 0:
        return d_q.zero_(), d_k.zero_(), d_v.zero_()
    *rest, sinks = rest
    c = _Call(q, k, v, *rest, None)
    c.args.o = _tensor(_rows(o))
    c.args.lse = _c.Tensor(None, lse.data_ptr(), lse.numel() * 4, 0, 0, 0, 0, 0)
    back = _c.BackwardArgs()
    back.size, back.forward = ctypes.sizeof(_c.BackwardArgs), ctypes.pointer(c.args)
    back.partial_keys = int(sinks is not None)  # a sink counts in LSE as a key whose value is 0
    back.d_o, back.d_q, back.d_k, back.d_v = _tensor(d_o), _tensor(d_q), _tensor(d_k), _tensor(d_v)
    c.place.run(c.place.op_backward, c.op.handle, back)
    c.place.prepare_once("op_prepare_backward", c.op, back, q.shape, k.shape)
    return d_q, d_k, d_v


def _append(
    q: Tensor, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, used: Tensor, block_table: Optional[Tensor], cos: Optional[Tensor],
    sin: Optional[Tensor], interleaved: bool, q_at_used: bool,
) -> Tensor:  # fmt: skip
    """q rotated, empty without cos."""
    out = q.new_empty(q.shape if cos is not None else 0)
    if not q.shape[0]:
        return out
    place, (q, k, v, k_cache, v_cache) = _place(q), (_rows(x).transpose(1, 2) for x in (q, k, v, k_cache, v_cache))
    rotary = _c.Rotary(2 * cos.shape[1], 0, int(not interleaved)) if cos is not None else _c.Rotary()
    key = ("append", q.dtype, q.shape[3], v.shape[3], rotary.dim, interleaved, cos is None or cos.dtype)
    op = place.device._ops.get(key) or place.device._op(key, _c.made(
        _c.AppendConfig, dtype=_DTYPES[q.dtype], head_dim=q.shape[3], head_dim_v=v.shape[3], rotary=rotary,
        cos_sin_of_dtype=int(cos is not None and cos.dtype == q.dtype),
    ), "append")  # fmt: skip
    a = _c.made(
        _c.AppendArgs, b=q.shape[0], hkv=k.shape[1], hq=q.shape[1], new_rows=k.shape[2], capacity=k_cache.shape[2], used=_vector(used),
        k=_tensor(k), v=_tensor(v), k_cache=_tensor(k_cache), v_cache=_tensor(v_cache),
    )  # fmt: skip
    if block_table is not None:
        pages = _c.made(_c.Pages, table=_vector(block_table), stride=block_table.shape[1], page_size=k_cache.shape[2], count=k_cache.shape[0])
        a.pages, a.capacity = ctypes.pointer(pages), 0
    if cos is not None and sin is not None:
        a.cos, a.sin, a.positions = _vector(cos), _vector(sin), cos.shape[0]
        if q.numel():
            a.q, a.q_out, a.rows_q, a.q_at_used = _tensor(q), _tensor(out.transpose(1, 2)), q.shape[2], int(q_at_used)
    place.run(place.append_forward, op.handle, a)
    return out


def append(
    q: Tensor, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, used: Tensor, block_table: Optional[Tensor], cos: Optional[Tensor],
    sin: Optional[Tensor], interleaved: bool, q_at_used: bool,
) -> Tensor:  # fmt: skip
    """Writes k and v [batch, rows, heads, dim] behind the first used int32 [batch] rows of caches [batch, keys, heads, dim], or
    with block_table of pages [pages, page size, heads, dim]. With cos and sin it rotates k, and q, which it returns: its rows at
    the positions of k, or all at used."""
    batch, keys = q.shape[0], k_cache.shape[1] * (1 if block_table is None else block_table.shape[1])
    shape = (k_cache.shape[0] if block_table is not None else batch, *k_cache.shape[1:3])
    tensors = [("k", k, (batch, k.shape[1], shape[2], q.shape[3])), ("v", v, (*k.shape[:3], v_cache.shape[3])),
               ("k_cache", k_cache, (*shape, q.shape[3])), ("v_cache", v_cache, (*shape, v_cache.shape[3])), ("cache_seqlens", used, (batch,))]  # fmt: skip
    if block_table is not None:
        tensors.append(("block_table", block_table, (batch, block_table.shape[1])))
    for name, t in (("rotary_cos", cos), ("rotary_sin", sin)):
        if t is not None and cos is not None:
            if t.shape[0] < keys or 2 * t.shape[1] > q.shape[3]:
                raise ValueError(f"{name} has shape {tuple(t.shape)}, want at least {keys} positions of at most {q.shape[3] // 2}")
            if t.dtype not in (q.dtype, torch.float32):
                raise TypeError(f"{name} is of {t.dtype}, want {q.dtype} or float32")
            tensors.append((name, t, tuple(cos.shape)))
    for name, t, want in tensors:
        if t.device != q.device:
            raise ValueError(f"{name} is on {t.device}, and q on {q.device}")
        if tuple(t.shape) != want:
            raise ValueError(f"{name} has shape {tuple(t.shape)}, want {want}")
        if name in ("k", "v", "k_cache", "v_cache") and t.dtype != q.dtype:
            raise TypeError(f"{name} is of {t.dtype}, and q of {q.dtype}")
        if name.endswith("_cache") and t.stride(-1) != 1 and t.shape[-1] != 1:
            raise ValueError(f"{name} has strides {t.stride()}, want rows that are contiguous")
    if q.dtype not in _DTYPES:
        raise TypeError(f"q is of {q.dtype}, want float16, bfloat16 or float32")
    if cos is not None and sin is not None and cos.dtype != sin.dtype:
        raise TypeError(f"rotary_cos is of {cos.dtype}, and rotary_sin of {sin.dtype}")
    used, block_table, cos, sin = [None if t is None else t.contiguous() for t in (used, block_table, cos, sin)]
    call = torch.ops.vkattn.append if _registered and _compiling() else _append
    turned = call(q, k, v, k_cache, v_cache, used, block_table, cos, sin, interleaved, q_at_used)
    return q if cos is None else turned


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, max_logits: Optional[Tensor], *rest: Any) -> Any:  # type: ignore[override]
        o, lse = _forward(q, k, v, *rest, max_logits=max_logits)
        tensors = [x if isinstance(x, Tensor) else None for x in rest]
        ctx.save_for_backward(o, lse, q, k, v, *tensors)
        ctx.rest = [None if isinstance(x, Tensor) else x for x in rest]
        ctx.mark_non_differentiable(lse)
        ctx.set_materialize_grads(False)  # else a kernel writes zeros for LSE
        return o, lse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_o: Optional[Tensor], _: Any) -> Any:  # type: ignore[override]
        if d_o is None:
            return (None,) * (4 + len(ctx.rest))
        o, lse, q, k, v, *tensors = ctx.saved_tensors
        rest = [y if x is None else x for x, y in zip(ctx.rest, tensors)]
        return (*_backward(d_o, o, lse, q, k, v, *rest), *[None] * (1 + len(rest)))


class _PlainFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, plain: _Plain) -> Any:  # type: ignore[override]
        o, lse = plain.forward(q, k, v, True)
        ctx.save_for_backward(o, lse, q, k, v)
        ctx.plain = plain
        ctx.mark_non_differentiable(lse)
        ctx.set_materialize_grads(False)
        return o, lse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_o: Optional[Tensor], _: Any) -> Any:  # type: ignore[override]
        if d_o is None:
            return None, None, None, None
        return (*ctx.plain.backward(d_o, *ctx.saved_tensors), None)


_REST = (
    "Tensor? cu_q, Tensor? cu_k, Tensor? used_k, Tensor? block_table, SymInt max_q, SymInt max_k, int causal, int left, int right, "
    "float softcap, float scale, Tensor? alibi, Tensor? bias, Tensor? mask, float dropout, Tensor? seed, Tensor? sinks"
)


_OPTIONS = "int causal, int left, int right, float softcap, float scale"


class _TracedFunction(torch.autograd.Function):
    """_PlainFunction as torch.compile traces it: operators, which take few arguments and have no autograd in Python."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, causal: int, left: int, right: int, softcap: float, scale: float) -> Any:  # type: ignore[override]
        o, lse = torch.ops.vkattn.plain_forward(q, k, v, causal, left, right, softcap, scale)
        ctx.save_for_backward(o, lse, q, k, v)
        ctx.options = causal, left, right, softcap, scale
        return o

    @staticmethod
    def backward(ctx: Any, d_o: Tensor) -> Any:  # type: ignore[override]
        o, lse, q, k, v = ctx.saved_tensors
        d_q, d_k, d_v = torch.ops.vkattn.plain_backward(d_o, o, lse, q, k, v, *ctx.options)
        return d_q, d_k, d_v, None, None, None, None, None


def _register() -> bool:
    """Makes operators that torch.compile takes: vkattn::forward and vkattn::backward, and of calls without further tensors
    vkattn::plain_forward and vkattn::plain_backward. False before PyTorch 2.4."""
    library = torch.library
    if not hasattr(library, "register_autograd"):
        return False
    library.define("vkattn::forward", f"(Tensor q, Tensor k, Tensor v, {_REST}) -> (Tensor, Tensor)")
    library.define(
        "vkattn::backward", f"(Tensor d_o, Tensor o, Tensor lse, Tensor q, Tensor k, Tensor v, {_REST}) -> (Tensor, Tensor, Tensor)"
    )

    def plain_forward(q: Tensor, k: Tensor, v: Tensor, *options: Any) -> Any:
        return _plain(False, q, k, v, *options).tell().forward(q, k, v, True)

    def plain_backward(d_o: Tensor, o: Tensor, lse: Tensor, q: Tensor, k: Tensor, v: Tensor, *options: Any) -> Any:
        return _plain(False, q, k, v, *options).tell().backward(d_o, o, lse.contiguous(), q, k, v)

    for name in ("plain", "python"):
        library.define(f"vkattn::{name}_forward", f"(Tensor q, Tensor k, Tensor v, {_OPTIONS}) -> (Tensor, Tensor)")
        library.define(
            f"vkattn::{name}_backward",
            f"(Tensor d_o, Tensor o, Tensor lse, Tensor q, Tensor k, Tensor v, {_OPTIONS}) -> (Tensor, Tensor, Tensor)",
        )
        direct = _register_direct() if name == "plain" else []
        for device in {"cpu", "cuda"}.difference(direct):
            library.impl(f"vkattn::{name}_forward", device, plain_forward)
            library.impl(f"vkattn::{name}_backward", device, plain_backward)
    library.define(
        "vkattn::append",
        "(Tensor q, Tensor k, Tensor v, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor used, Tensor? block_table, Tensor? cos, Tensor? sin, "
        "bool interleaved, bool q_at_used) -> Tensor",
    )
    library.impl("vkattn::append", ("cpu", "cuda"), _append)
    library.register_fake("vkattn::append", lambda q, *x: q.new_empty(q.shape if x[6] is not None else 0))
    library.impl("vkattn::forward", ("cpu", "cuda"), _forward)
    library.impl("vkattn::backward", ("cpu", "cuda"), _backward)

    def fake_forward(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Tuple[Tensor, Tensor]:
        return _like_q(q, v.shape[3]), q.new_empty(q.shape[:3], dtype=torch.float32)

    def fake_backward(d_o: Tensor, o: Tensor, lse: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Any:
        return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)

    def setup(ctx: Any, inputs: Any, output: Any) -> None:
        q, k, v, *rest = inputs
        ctx.save_for_backward(*output, q, k, v, *[x if isinstance(x, Tensor) else None for x in rest])
        ctx.rest = [None if isinstance(x, Tensor) else x for x in rest]
        ctx.set_materialize_grads(False)

    def backward(ctx: Any, d_o: Optional[Tensor], _: Any) -> Any:
        if d_o is None:
            return (None,) * (3 + len(ctx.rest))
        o, lse, q, k, v, *tensors = ctx.saved_tensors
        rest = [y if x is None else x for x, y in zip(ctx.rest, tensors)]
        return (*torch.ops.vkattn.backward(d_o, o, lse, q, k, v, *rest), *[None] * len(rest))

    for prefix in ("", "plain_"):
        library.register_fake(f"vkattn::{prefix}forward", fake_forward)
        library.register_fake(f"vkattn::{prefix}backward", fake_backward)
    library.register_autograd("vkattn::forward", backward, setup_context=setup)
    return True


_registered = _register()


def attend(
    q: Tensor, k: Tensor, v: Tensor, *, cu_q: Optional[Tensor] = None, cu_k: Optional[Tensor] = None, used_k: Optional[Tensor] = None,
    block_table: Optional[Tensor] = None, max_q: int = 0, max_k: int = 0, causal: int = _NONE, window: Tuple[int, int] = (-1, -1), softcap: float = 0.0, scale: Optional[float] = None,
    alibi: Optional[Tensor] = None, bias: Optional[Tensor] = None, mask: Optional[Tensor] = None, dropout: float = 0.0,
    sinks: Optional[Tensor] = None, max_logits: Optional[Tensor] = None, rows_first: bool = False, with_lse: bool = True,
) -> Tuple[Tensor, Optional[Tensor]]:  # fmt: skip
    """O and LSE of q, k and v [batch, heads, rows, dim], or if rows_first [batch, rows, heads, dim], which may be views with
    any strides. With block_table [batch, pages of each], k and v are [pages, heads, page size, dim]. Without with_lse LSE may
    be None. max_logits float32 [heads] gets the largest score of each head."""
    gradients = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    left, right = window
    left, right = max(left, -1), max(right, -1)
    if scale is None:
        scale = q.shape[3] ** -0.5 if q.shape[3] else 1.0
    plain = None
    if not _compiling() and max_logits is None and _is_plain(cu_q, cu_k, used_k, block_table, alibi, bias, mask, dropout, sinks):
        plain = rows_first, q, k, v, causal, left, right, float(softcap), float(scale)
        known = _plains.get(_layout(*plain))
        if known is not None:
            return _PlainFunction.apply(q, k, v, known) if gradients else known.forward(q, k, v, with_lse)
    if rows_first:
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    options = [("cu_seqlens_q", cu_q), ("cu_seqlens_k", cu_k), ("cache_seqlens", used_k), ("block_table", block_table),
               ("alibi_slopes", alibi), ("attn_mask", bias), ("attn_mask", mask), ("s_aux", sinks)]  # fmt: skip
    for name, t in [("q", q), ("k", k), ("v", v), *(x for x in options if x[1] is not None)]:
        if not isinstance(t, Tensor):
            raise TypeError(f"{name} is a {type(t).__name__}, want a torch.Tensor")
        if t.device != q.device:
            raise ValueError(f"{name} is on {t.device}, and q on {q.device}")
    for name, t in (("k", k), ("v", v)):
        if t.dtype != q.dtype:
            raise TypeError(f"{name} is of {t.dtype}, and q of {q.dtype}")
    if q.dtype not in _DTYPES:
        raise TypeError(f"q is of {q.dtype}, want float16, bfloat16 or float32")
    if k.shape[3] != q.shape[3] or v.shape[:3] != k.shape[:3] or block_table is None and k.shape[0] != q.shape[0]:
        raise ValueError(f"q, k and v have shapes {tuple(q.shape)}, {tuple(k.shape)} and {tuple(v.shape)}")
    if k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        raise ValueError(f"{q.shape[1]} heads of q are no multiple of {k.shape[1]} of k")
    for name, t in options[:4]:
        if t is not None and t.dtype != torch.int32:
            raise TypeError(f"{name} is of {t.dtype}, want int32")
    if cu_q is None:
        max_q, max_k = q.shape[2], k.shape[2]
    elif cu_q.dim() != 1 or cu_q.numel() < 2 or block_table is None and (cu_k is None or cu_q.shape != cu_k.shape):
        raise ValueError("cu_seqlens_q and cu_seqlens_k are no lists of one length")
    if block_table is not None:
        batch = q.shape[0] if cu_q is None else cu_q.numel() - 1
        if block_table.dim() != 2 or block_table.shape[0] != batch:
            raise ValueError(f"block_table has shape {tuple(block_table.shape)}, want [{batch}, pages of a sequence]")
        if gradients:
            raise NotImplementedError("the gradient of a call with block_table")
        block_table, max_k = block_table.contiguous(), block_table.shape[1] * k.shape[2]
    for name, t in options[5:]:
        if t is not None and t.requires_grad and torch.is_grad_enabled():
            raise NotImplementedError(f"the gradient of {name}")
    if alibi is not None:
        heads = (q.shape[1],)
        if alibi.shape not in (heads, (q.shape[0] if cu_q is None else cu_q.numel() - 1, *heads)):
            raise ValueError(f"alibi_slopes has shape {tuple(alibi.shape)}, want [{q.shape[1]}] or [batch, {q.shape[1]}]")
        alibi = alibi.to(torch.float32).contiguous()
    if max_logits is not None:
        if not isinstance(max_logits, Tensor) or max_logits.dtype != torch.float32:
            raise TypeError("max_logits is no float32 tensor")
        if max_logits.shape != q.shape[1:2] or max_logits.device != q.device or not max_logits.is_contiguous():
            raise ValueError(f"max_logits has shape {tuple(max_logits.shape)} on {max_logits.device}, want [{q.shape[1]}] on {q.device}, contiguous")
        if _compiling():
            raise NotImplementedError("max_logits under torch.compile")
    if sinks is not None:
        if sinks.shape != q.shape[1:2]:
            raise ValueError(f"s_aux has shape {tuple(sinks.shape)}, want [{q.shape[1]}]")
        sinks = sinks.to(torch.float32).contiguous()
    seed = torch.randint(2**63 - 1, (2,), device=q.device) if dropout else None  # a CUDA graph draws it anew at each replay
    rest = (
        None if cu_q is None else cu_q.contiguous(), None if cu_k is None else cu_k.contiguous(),
        None if used_k is None else used_k.contiguous(), block_table, max_q, max_k, causal, left, right, float(softcap),
        float(scale), alibi, bias, mask, float(dropout), seed, sinks,
    )  # fmt: skip
    if plain and q.numel() and k.numel() and v.numel() and all(_rows(x) is x for x in (q, k, v)):
        known = _plain(*plain)
        return _PlainFunction.apply(*plain[1:4], known) if gradients else known.forward(*plain[1:4], with_lse)
    q, k, v = _rows(q), _rows(k), _rows(v)
    if _registered and _compiling():
        if not with_lse and q.numel() and k.numel() and v.numel() and _is_plain(*rest[:4], *rest[11:15], rest[16]):
            o, lse = _TracedFunction.apply(q, k, v, *rest[6:11]), None
        else:
            o, lse = torch.ops.vkattn.forward(q, k, v, *rest)
    elif gradients:
        o, lse = _Function.apply(q, k, v, max_logits, *rest)
    else:
        o, lse = _forward(q, k, v, *rest, max_logits=max_logits)
    return o.transpose(1, 2) if rows_first else o, lse


def sdpa(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Optional[Tensor], dropout_p: float, is_causal: bool,
    scale: Optional[float], enable_gqa: bool,
) -> Tensor:  # fmt: skip
    for name, t in (("query", query), ("key", key), ("value", value)):
        if not isinstance(t, Tensor):
            raise TypeError(f"{name} is a {type(t).__name__}, want a torch.Tensor")
    if query.dim() == 3 and key.dim() == 3 and value.dim() == 3:
        one = (x.unsqueeze(0) for x in (query, key, value))
        mask = attn_mask.unsqueeze(0) if attn_mask is not None and attn_mask.dim() == 3 else attn_mask
        return sdpa(*one, mask, dropout_p, is_causal, scale, enable_gqa).squeeze(0)
    if query.dim() != 4 or key.dim() != 4 or value.dim() != 4:
        raise NotImplementedError(f"query has {query.dim()} dimensions, key {key.dim()}, value {value.dim()}: want 3 or 4 of all")
    if not enable_gqa and query.shape[1] != key.shape[1]:
        raise ValueError(f"{query.shape[1]} heads of query and {key.shape[1]} of key take enable_gqa=True")
    bias = mask = None
    if attn_mask is not None:
        if is_causal:
            raise ValueError("attn_mask and is_causal exclude one another")
        m = attn_mask
        while m.dim() < 4:
            m = m.unsqueeze(0)
        if m.shape[3] != key.shape[2]:
            m = m.expand(*m.shape[:3], key.shape[2])
        m = m.contiguous()
        if m.dtype == torch.bool:
            mask = m
        elif m.dtype in _DTYPES:
            bias = m
        else:
            raise TypeError(f"attn_mask is of {m.dtype}, want bool or a type of query")
    causal = _TOP_LEFT if is_causal else _NONE
    return attend(query, key, value, causal=causal, scale=scale, bias=bias, mask=mask, dropout=dropout_p, with_lse=False)[0]
