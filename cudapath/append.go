package cudapath

import (
	"fmt"
	"slices"

	"vkattn/internal/backend"
	"vkattn/internal/problem"
	"vkattn/internal/tensors"
)

// Appending to a cache of the storage type, by kernels/append.cu.

// appendFamily is the family of kernels that append.
const appendFamily = "append"

// appendTask is AttnAppendTask of kernels/attn_append.h.
type appendTask struct {
	in, out                    tensorParams
	lengths                    uint64
	heads, dim, pairs, toCache int32
	rows, limit, atUsed, _     int32
}

// appendParams is AttnAppendParams of kernels/attn_append.h.
type appendParams struct {
	tasks                              [3]appendTask
	used, table, cos, sin              uint64
	batches, sequences, packed         int32
	pageRows, pages, tableStride       int32
	rotaryFirst, halfSplit, cosSinType int32
	_                                  int32
}

// appendOp implements backend.Append.
type appendOp struct {
	d   *device
	k   *kernel
	cfg backend.AppendConfig
}

// Append implements backend.Kernels.
func (d *device) Append(cfg backend.AppendConfig) (backend.Append, error) {
	if cfg.KeyType != problem.KVSame || cfg.ValueType != problem.KVSame {
		return nil, fmt.Errorf("%w: %v was opened without Vulkan, and tier cuda appends to caches of %v alone, not of %v and %v",
			problem.ErrUnsupported, d, cfg.DType, cfg.KeyType, cfg.ValueType)
	}
	i := slices.IndexFunc(d.c.table.appends, func(k Kernel) bool { return k.DType == cfg.DType.String() })
	if i < 0 {
		return nil, unsupported("append", "no kernel for %v", cfg.DType)
	}
	return &appendOp{d, d.c.kernelOf(&d.c.table.appends[i]), cfg}, nil
}

func (o *appendOp) Close() error   { return nil } // kernels are the context's
func (o *appendOp) Prepare() error { return load1(nil, o.k) }

// Append implements backend.Append.
func (o *appendOp) Append(on backend.Stream, c backend.AppendCall) error {
	s := on.(*deviceStream)
	if err := load1(s, o.k); err != nil {
		return err
	}
	var v invocation
	p := appendParams{batches: int32(c.Sequences), sequences: int32(c.Sequences), pageRows: int32(c.PageRows), pages: int32(c.Pages), tableStride: int32(c.TableStride), rotaryFirst: int32(o.cfg.RotaryFirst)}
	if c.Packed {
		p.batches, p.packed = 1, 1
	}
	if o.cfg.RotaryHalfSplit {
		p.halfSplit = 1
	}
	if o.cfg.CosSinOfDType {
		p.cosSinType = 1
	}
	var lengths uint64
	from := [...]*tensors.Layout{&c.Used, &c.Lengths, &c.Table, &c.Cos, &c.Sin}
	for i, to := range [...]*uint64{&p.used, &lengths, &p.table, &p.cos, &p.sin} {
		if err := v.take(o.d.c, to, from[i]); err != nil {
			return err
		}
	}
	tasks, rows := uint64(0), uint64(0)
	for _, x := range [...]struct {
		in, out *tensors.Layout
		pairs   int
		toCache int32
	}{{&c.K, &c.KCache, o.cfg.RotaryDim / 2, 1}, {&c.V, &c.VCache, 0, 1}, {&c.Q, &c.QOut, o.cfg.RotaryDim / 2, 0}} {
		if x.in.Field == "" {
			continue
		}
		t := &p.tasks[tasks]
		t.heads, t.dim, t.pairs, t.toCache = int32(x.in.Counts[1]), int32(x.in.Dim), int32(x.pairs), x.toCache
		t.lengths, t.rows, t.limit = lengths, int32(x.in.Counts[2]), int32(c.Limit)
		if x.toCache == 0 {
			t.limit = int32(c.LimitQ)
			if c.OwnRowsQ {
				t.lengths = 0
			}
			if c.QAtUsed {
				t.atUsed = 1
			}
		}
		ends := [...]*tensors.Layout{x.in, x.out}
		for i, to := range [...]*tensorParams{&t.in, &t.out} {
			to.batch, to.head, to.row = ends[i].Steps[0], ends[i].Steps[1], ends[i].Steps[2]
			if err := v.take(o.d.c, &to.base, ends[i]); err != nil {
				return err
			}
		}
		tasks, rows = tasks+1, max(rows, uint64(x.in.Counts[1]*x.in.Counts[2]))
	}
	if rows *= uint64(p.batches); rows == 0 {
		return nil
	}
	v.call.function, v.call.threads = o.k.handle, uint32(o.k.Threads)
	v.call.grid = [3]uint32{uint32(min((rows+uint64(o.k.Rows)-1)/uint64(o.k.Rows), 1<<20)), uint32(tasks), 1}
	if err := s.use(launchOp); err != nil {
		return err
	}
	defer s.c.leave()
	if name, r := launch(s.Stream, &v.call, &p); r != cudaSuccess {
		err := s.c.check(name, r)
		err.(*Error).Detail = o.k.Entry
		return err
	}
	return nil
}

// take sets an address to that of a tensor, 0 if it is left out.
func (v *invocation) take(c *Context, to *uint64, from *tensors.Layout) (err error) {
	if from.Field != "" {
		x := problem.CUDAVector{Memory: from.Tensor.Memory, Offset: uint64(from.Tensor.Offset * from.Size)}
		*to, err = v.address(c, from.Field, &x)
	}
	return err
}
