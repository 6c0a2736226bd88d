//go:build cgo && linux

package main

// #include "calls.h"
import "C"

import (
	"errors"
	"unsafe"

	"vkattn/attention"
	"vkattn/attention/kvcache"
)

// Appending to a KV cache. Host memory is the CPU's on every device: a cache that went to a device and back for a few new
// rows would take longer than the rows.

// appending is an Append, with one for host memory. It keeps its own device, as operation does.
type appending struct {
	*kvcache.Append
	onCPU  *kvcache.Append
	device *device
}

func (p *appending) Close() error { return errors.Join(p.Append.Close(), p.onCPU.Close()) }

//export goAppendCreate
func goAppendCreate(h C.vkattn_device, from *C.vkattn_append_config, out *C.vkattn_append) C.vkattn_status {
	return using(unsafe.Pointer(h), C.KIND_DEVICE, func(o *object, d *device) error {
		if out == nil {
			return invalid("append is NULL")
		}
		cfg, err := appendConfigOf(from)
		if err != nil {
			return err
		}
		p := &appending{device: d}
		if p.Append, err = kvcache.NewAppend(d.Device, cfg); err != nil {
			return err
		}
		cfg.Access = attention.AccessAuto
		if p.onCPU, err = kvcache.NewAppend(nil, cfg); err == nil {
			err = p.Prepare()
		}
		if err != nil {
			return errors.Join(err, p.Close())
		}
		handle(unsafe.Pointer(out), C.KIND_APPEND, o, p)
		return nil
	})
}

func appendConfigOf(from *C.vkattn_append_config) (cfg kvcache.AppendConfig, err error) {
	c, err := taken(from, "config")
	if err != nil {
		return cfg, err
	}
	cfg = kvcache.AppendConfig{HeadDim: int(c.head_dim), HeadDimV: int(c.head_dim_v), KVBlock: int(c.kv_block),
		Rotary: kvcache.Rotary{Dim: int(c.rotary.dim), First: int(c.rotary.first)}}
	if err := choices(choice{"dtype", c.dtype, (*uint8)(&cfg.DType)}, choice{"key_type", c.key_type, (*uint8)(&cfg.KeyType)},
		choice{"value_type", c.value_type, (*uint8)(&cfg.ValueType)}, choice{"access", c.access, (*uint8)(&cfg.Access)},
		choice{"rotary.style", c.rotary.style, (*uint8)(&cfg.Rotary.Style)}); err != nil {
		return cfg, err
	}
	if cfg.CosSinOfDType, err = truth("config->cos_sin_of_dtype", c.cos_sin_of_dtype); err != nil {
		return cfg, err
	}
	cfg.Check, err = truth("config->check", c.check)
	return cfg, err
}

//export goAppendForward
func goAppendForward(h C.vkattn_append, on C.vkattn_stream, from *C.vkattn_append_args) C.vkattn_status {
	return status(func() error {
		c := call{}
		defer c.end()
		o, p, err := hold[*appending](&c, unsafe.Pointer(h), C.KIND_APPEND)
		if err != nil {
			return err
		}
		r := reader{call: &c, device: o.home}
		var s *stream
		if on != nil {
			if _, s, err = hold[*stream](&c, unsafe.Pointer(on), C.KIND_STREAM); err != nil {
				return err
			}
			if p.device.isCUDA() {
				r.cuda = p.device
			}
		}
		a := r.appendArgs(from)
		switch {
		case r.err != nil:
			return r.err
		case s != nil && s.calls != nil:
			return p.Forward(s.calls, a)
		case s != nil:
			return p.Record(s.Commands, a)
		case a.K.Host != nil:
			return p.onCPU.Forward(nil, a)
		}
		return p.Forward(nil, a)
	})
}

func (r *reader) appendArgs(from *C.vkattn_append_args) (a kvcache.AppendArgs) {
	c, err := taken(from, "args")
	if err != nil {
		r.fail(err)
		return a
	}
	return kvcache.AppendArgs{B: r.int("b", c.b), Hkv: r.int("hkv", c.hkv), Hq: r.int("hq", c.hq), New: r.int("new_rows", c.new_rows),
		K: r.tensor("k", &c.k), V: r.tensor("v", &c.v), UsedNew: r.vector("used_new", &c.used_new), CuNew: r.vector("cu_new", &c.cu_new),
		TotalNew: r.int("total_new", c.total_new), KCache: r.tensor("k_cache", &c.k_cache), VCache: r.tensor("v_cache", &c.v_cache),
		Capacity: r.int("capacity", c.capacity), Pages: r.pages(c.pages), Used: r.vector("used", &c.used), Shard: r.bool("shard", c.shard),
		KScale: r.vector("k_scale", &c.k_scale), VScale: r.vector("v_scale", &c.v_scale),
		Cos: r.vector("cos", &c.cos), Sin: r.vector("sin", &c.sin), Positions: r.int("positions", c.positions),
		Q: r.tensor("q", &c.q), QOut: r.tensor("q_out", &c.q_out), RowsQ: r.int("rows_q", c.rows_q), QAtUsed: r.bool("q_at_used", c.q_at_used)}
}
