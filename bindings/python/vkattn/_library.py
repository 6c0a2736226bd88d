"""libvkattn.so through ctypes: its structs, functions and errors."""

from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, c_char, c_char_p, c_float, c_int32, c_int64, c_size_t, c_uint64, c_void_p
from typing import Any

ABI = 1


class Error(RuntimeError):
    """An error of a device or of the process: no device, a lost device, a timeout, a fork's child, an exit."""


def _struct(name: str, fields: list[tuple[str, Any]]) -> type[ctypes.Structure]:
    return type(name, (ctypes.Structure,), {"_fields_": fields})


# The structs of vkattn.h. A test compares their offsets with bindings/c/abi.txt.
def _ints(names: str) -> list[tuple[str, Any]]:
    return [(n, c_int32) for n in names.split()]


def _longs(names: str) -> list[tuple[str, Any]]:
    return [(n, c_int64) for n in names.split()]


_SIZE = ("size", c_size_t)
_MEMORY = [("buffer", c_void_p), ("data", c_void_p), ("bytes", c_uint64), ("offset", c_int64)]
Tensor = _struct("vkattn_tensor", _MEMORY + _longs("stride_batch stride_head stride_row expanded"))
Vector = _struct("vkattn_vector", _MEMORY)
DeviceOptions = _struct(
    "vkattn_device_options",
    [_SIZE, ("device", c_char_p), *_ints("cpu validation"), ("pipeline_cache", c_char_p), ("timeout_ms", c_int64)],
)
Cuda = _struct("vkattn_cuda", [_SIZE, ("device", c_char_p), ("context", c_void_p)])
DeviceInfo = _struct("vkattn_device_info", [_SIZE, *_ints("kind wrapped"), ("name", c_char * 256), ("why_cpu", c_char * 1024)])
TableType = _struct("vkattn_table_type", [("name", c_char_p), *_ints("rank is_float")])
Config = _struct(
    "vkattn_config",
    [
        _SIZE,
        *_ints("dtype head_dim head_dim_v causal has_scale"),
        ("scale", c_float),
        *_ints("tier access tuning has_window window_left window_right attention_chunk align"),
        ("softcap", c_float),
        ("dropout", c_float),
        *_ints("key_type value_type kv_block fixed_split f32_o f32_gradients check"),
        ("score_mod", c_char_p),
        ("mask_mod", c_char_p),
        ("tables", POINTER(TableType)),
        ("table_count", c_size_t),
        ("kernel", c_char_p),
    ],
)
Shape = _struct("vkattn_shape", _longs("b hq hkv sq sk"))
Varlen = _struct(
    "vkattn_varlen", [_SIZE, ("cu_q", Vector), ("cu_k", Vector), *_longs("total_q total_k"), ("used_q", Vector), ("used_k", Vector)]
)
Pages = _struct("vkattn_pages", [_SIZE, ("table", Vector), *_longs("stride page_size count")])
Bias = _struct("vkattn_bias", [_SIZE, ("tensor", Tensor), *_longs("dtype batches heads rows")])
Mask = _struct("vkattn_mask", [_SIZE, ("tensor", Tensor), *_longs("batches heads rows")])
Table = _struct("vkattn_table", [("vector", Vector), ("name", c_char_p), ("dims", c_int64 * 3)])
Args = _struct(
    "vkattn_args",
    [
        _SIZE,
        ("shape", Shape),
        *[(n, Tensor) for n in ("q", "k", "v", "o", "lse")],
        ("varlen", POINTER(Varlen)),
        ("pages", POINTER(Pages)),
        ("sparse_tokens", c_void_p),
        ("blocks", c_void_p),
        ("bias", POINTER(Bias)),
        ("mask", POINTER(Mask)),
        ("alibi", Vector),
        ("sinks", Vector),
        ("tables", POINTER(Table)),
        ("table_count", c_size_t),
        ("dropout_seed", c_uint64),
        ("dropout_offset", c_uint64),
        ("k_scale", Vector),
        ("v_scale", Vector),
        ("dropout_state", Vector),
        ("max_logits", Vector),
        *_ints("alibi_per_sequence"),
    ],
)
BackwardArgs = _struct(
    "vkattn_backward_args",
    [
        _SIZE,
        ("forward", POINTER(Args)),
        *[(n, Tensor) for n in ("d_o", "d_lse", "d_q", "d_k", "d_v", "d_bias")],
        ("d_sinks", Vector),
        *_ints("accumulate partial_keys"),
        ("d_tables", POINTER(Table)),
        ("d_table_count", c_size_t),
    ],
)
Rotary = _struct("vkattn_rotary", _ints("dim first style"))
AppendConfig = _struct(
    "vkattn_append_config",
    [_SIZE, *_ints("dtype head_dim head_dim_v key_type value_type kv_block"), ("rotary", Rotary), *_ints("cos_sin_of_dtype access check")],
)
AppendArgs = _struct(
    "vkattn_append_args",
    [
        _SIZE,
        *_longs("b hkv hq new_rows"),
        *[(n, Tensor) for n in ("k", "v")],
        *[(n, Vector) for n in ("used_new", "cu_new")],
        *_longs("total_new"),
        *[(n, Tensor) for n in ("k_cache", "v_cache")],
        *_longs("capacity"),
        ("pages", POINTER(Pages)),
        *[(n, Vector) for n in ("used", "k_scale", "v_scale", "cos", "sin")],
        *_longs("positions"),
        *[(n, Tensor) for n in ("q", "q_out")],
        *_longs("rows_q"),
        *_ints("q_at_used shard"),
    ],
)
Plan = _struct(
    "vkattn_plan", [_SIZE, *_ints("tier splits"), *[(n, c_uint64) for n in ("flops", "bytes", "workspace_bytes")], ("text", c_char * 2048)]
)

STRUCTS = (
    Tensor, Vector, DeviceOptions, Cuda, DeviceInfo, TableType, Config, Shape, Varlen, Pages, Bias, Mask, Table, Args, BackwardArgs, Plan,
    Rotary, AppendConfig, AppendArgs,
)  # fmt: skip

# The exceptions of the statuses 1 to 9.
_EXCEPTIONS = (ValueError, NotImplementedError, Error, MemoryError, Error, Error, Error, Error, Error)

_FUNCTIONS = {
    "device_open": [POINTER(DeviceOptions), POINTER(c_void_p)],
    "device_open_cuda": [POINTER(Cuda), POINTER(c_void_p)],
    "stream_wrap_cuda": [c_void_p, c_void_p, POINTER(c_void_p)],
    "device_get_info": [c_void_p, POINTER(DeviceInfo)],
    "device_destroy": [c_void_p],
    "op_create": [c_void_p, POINTER(Config), POINTER(c_void_p)],
    "op_destroy": [c_void_p],
    "op_forward": [c_void_p, c_void_p, POINTER(Args)],
    "op_backward": [c_void_p, c_void_p, POINTER(BackwardArgs)],
    "op_prepare": [c_void_p, POINTER(Args)],
    "op_prepare_backward": [c_void_p, POINTER(BackwardArgs)],
    "call_create_forward": [c_void_p, POINTER(Args), POINTER(c_void_p)],
    "call_create_backward": [c_void_p, POINTER(BackwardArgs), POINTER(c_void_p)],
    "call_run": [c_void_p, c_void_p, c_char_p],  # the addresses packed
    "call_destroy": [c_void_p],
    "append_create": [c_void_p, POINTER(AppendConfig), POINTER(c_void_p)],
    "append_destroy": [c_void_p],
    "append_forward": [c_void_p, c_void_p, POINTER(AppendArgs)],
    "op_plan": [c_void_p, POINTER(Args), POINTER(Plan)],
}


def made(struct: type[ctypes.Structure], **members: Any) -> Any:
    """A struct with its size."""
    s = struct(**members)
    s.size = ctypes.sizeof(struct)
    return s


class Library:
    """The functions of libvkattn.so. Each raises the exception of its error."""

    def __init__(self) -> None:
        path = os.environ.get("VKATTN_LIBRARY") or os.path.join(os.path.dirname(__file__), "libvkattn.so")
        self._c = ctypes.CDLL(path)
        self._c.vkattn_last_error.restype = c_char_p
        if (abi := self._c.vkattn_abi()) != ABI:
            raise ImportError(f"{path} has ABI {abi}, and this package is for {ABI}")
        for name, types in _FUNCTIONS.items():
            getattr(self._c, "vkattn_" + name).argtypes = types

    def call(self, function: str, *args: Any) -> None:
        self.check(self.function(function)(*args))

    def function(self, name: str) -> Any:
        return getattr(self._c, "vkattn_" + name)

    def check(self, status: int) -> None:
        if status:
            text = self._c.vkattn_last_error().decode("utf-8", "replace")
            raise _EXCEPTIONS[status - 1](text)
