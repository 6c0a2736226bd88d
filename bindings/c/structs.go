//go:build cgo && linux

package main

// #include "calls.h"
import "C"

import (
	"fmt"
	"math"
	"unsafe"

	"vkattn/attention"
	"vkattn/attention/score"
	"vkattn/cudapath"
)

// The structs of a call in C, as those of package attention.

// configOf reads a Config.
func configOf(from *C.vkattn_config) (cfg attention.Config, err error) {
	c, err := taken(from, "config")
	if err != nil {
		return cfg, err
	}
	cfg = attention.Config{
		HeadDim: int(c.head_dim), HeadDimV: int(c.head_dim_v), AttentionChunk: int(c.attention_chunk),
		Softcap: float32(c.softcap), Dropout: float32(c.dropout), KVBlock: int(c.kv_block), FixedSplit: int(c.fixed_split),
		Kernel: goString(c.kernel),
	}
	if err := choices(
		choice{"dtype", c.dtype, (*uint8)(&cfg.DType)}, choice{"causal", c.causal, (*uint8)(&cfg.Causal)}, choice{"tier", c.tier, (*uint8)(&cfg.Tier)},
		choice{"access", c.access, (*uint8)(&cfg.Access)}, choice{"tuning", c.tuning, (*uint8)(&cfg.Tuning)}, choice{"align", c.align, (*uint8)(&cfg.Align)},
		choice{"key_type", c.key_type, (*uint8)(&cfg.KeyType)}, choice{"value_type", c.value_type, (*uint8)(&cfg.ValueType)}); err != nil {
		return cfg, err
	}
	for _, b := range []struct {
		name string
		n    C.int32_t
		to   *bool
	}{{"f32_o", c.f32_o, &cfg.F32O}, {"f32_gradients", c.f32_gradients, &cfg.F32Gradients}, {"check", c.check, &cfg.Check}} {
		if *b.to, err = truth("config->"+b.name, b.n); err != nil {
			return cfg, err
		}
	}
	scaled, err := truth("config->has_scale", c.has_scale)
	if err != nil {
		return cfg, err
	}
	windowed, err := truth("config->has_window", c.has_window)
	switch {
	case err != nil:
		return cfg, err
	case !scaled && c.scale != 0:
		return cfg, invalid("config->scale is %v, without has_scale", c.scale)
	case !windowed && (c.window_left != 0 || c.window_right != 0):
		return cfg, invalid("config->window_left and window_right are %d and %d, without has_window", c.window_left, c.window_right)
	}
	if scaled {
		cfg.Scale = attention.ScaleOf(float32(c.scale))
	}
	if windowed {
		cfg.Window = attention.WindowOf(int(c.window_left), int(c.window_right))
	}
	return cfg, modifiers(&cfg, &c)
}

// choice is a member of a config that has one of some values, and the field that takes it, which its type checks.
type choice struct {
	name string
	n    C.int32_t
	to   *uint8
}

func choices(list ...choice) error {
	for _, e := range list {
		if *e.to = uint8(e.n); C.int32_t(*e.to) != e.n {
			return invalid("config->%s is %d, which is none of its values", e.name, e.n)
		}
	}
	return nil
}

// modifiers reads the expressions of a Config, and the tables that they read.
func modifiers(cfg *attention.Config, c *C.vkattn_config) error {
	list, err := elements(c.tables, uint64(c.table_count), score.MaxTables, "config->tables")
	if err != nil {
		return err
	}
	var tables []score.Table
	for i := range list {
		t := &list[i]
		isFloat, err := truth("config->tables.is_float", t.is_float)
		switch {
		case err != nil:
			return err
		case isFloat:
			tables = append(tables, score.FloatTable(goString(t.name), int(t.rank)))
		default:
			tables = append(tables, score.IntTable(goString(t.name), int(t.rank)))
		}
	}
	for _, m := range []struct {
		name string
		text *C.char
		to   *score.Expr
	}{{"score_mod", c.score_mod, &cfg.ScoreMod}, {"mask_mod", c.mask_mod, &cfg.MaskMod}} {
		if text := goString(m.text); text != "" {
			if *m.to, err = score.Parse(text, tables...); err != nil {
				return invalid("config->%s: %v", m.name, err)
			}
		}
	}
	return nil
}

// reader reads the arguments of a call, whose buffers the call holds. It keeps the first error.
type reader struct {
	*call
	device *object // of the operation
	cuda   *device // data is memory of this device; nil: of the host
	err    error
}

func (r *reader) fail(err error) {
	if r.err == nil {
		r.err = err
	}
}

func (r *reader) args(from *C.vkattn_args) (a attention.Args) {
	c, err := taken(from, "args")
	if err != nil {
		r.fail(err)
		return a
	}
	s := &c.shape
	a = attention.Args{
		Shape: attention.Shape{B: r.int("shape.b", s.b), Hq: r.int("shape.hq", s.hq), Hkv: r.int("shape.hkv", s.hkv),
			Sq: r.int("shape.sq", s.sq), Sk: r.int("shape.sk", s.sk)},
		Q: r.tensor("q", &c.q), K: r.tensor("k", &c.k), V: r.tensor("v", &c.v), O: r.tensor("o", &c.o), LSE: r.tensor("lse", &c.lse),
		ALiBi: r.vector("alibi", &c.alibi), Sinks: r.vector("sinks", &c.sinks),
		DropoutSeed: uint64(c.dropout_seed), DropoutOffset: uint32(c.dropout_offset), DropoutState: r.vector("dropout_state", &c.dropout_state),
		MaxLogits: r.vector("max_logits", &c.max_logits), ALiBiPerSequence: r.bool("alibi_per_sequence", c.alibi_per_sequence),
		KScale: r.vector("k_scale", &c.k_scale), VScale: r.vector("v_scale", &c.v_scale),
	}
	if c.dropout_offset > math.MaxUint32 {
		r.fail(invalid("dropout_offset is %d, want less than 2^32", c.dropout_offset))
	}
	if c := option(r, c.varlen, "varlen"); c != nil {
		a.Varlen = &attention.Varlen{CuQ: r.vector("varlen.cu_q", &c.cu_q), CuK: r.vector("varlen.cu_k", &c.cu_k),
			TotalQ: r.int("varlen.total_q", c.total_q), TotalK: r.int("varlen.total_k", c.total_k),
			UsedQ: r.vector("varlen.used_q", &c.used_q), UsedK: r.vector("varlen.used_k", &c.used_k)}
	}
	a.Pages = r.pages(c.pages)
	if c := option(r, c.sparse_tokens, "sparse_tokens"); c != nil {
		a.SparseTokens = &attention.SparseTokens{Offsets: r.vector("sparse_tokens.offsets", &c.offsets),
			Tokens: r.vector("sparse_tokens.tokens", &c.tokens), Total: r.int("sparse_tokens.total", c.total),
			TopK: r.int("sparse_tokens.top_k", c.top_k), PerRow: r.bool("sparse_tokens.per_row", c.per_row)}
	}
	if c := option(r, c.blocks, "blocks"); c != nil {
		a.Blocks = &attention.Blocks{Map: r.vector("blocks.map", &c._map), BlockQ: r.int("blocks.block_q", c.block_q),
			BlockK: r.int("blocks.block_k", c.block_k), Batches: r.int("blocks.batches", c.batches), Heads: r.int("blocks.heads", c.heads)}
	}
	if c := option(r, c.bias, "bias"); c != nil {
		if c.dtype < 0 || c.dtype > C.VKATTN_F32 {
			r.fail(invalid("bias.dtype is %d, which is none of its values", c.dtype))
		}
		a.Bias = &attention.Bias{Tensor: r.tensor("bias.tensor", &c.tensor), DType: attention.DType(c.dtype),
			Batches: r.int("bias.batches", c.batches), Heads: r.int("bias.heads", c.heads), Rows: r.int("bias.rows", c.rows)}
	}
	if c := option(r, c.mask, "mask"); c != nil {
		a.Mask = &attention.Mask{Tensor: r.tensor("mask.tensor", &c.tensor),
			Batches: r.int("mask.batches", c.batches), Heads: r.int("mask.heads", c.heads), Rows: r.int("mask.rows", c.rows)}
	}
	a.Tables = r.tables("tables", c.tables, c.table_count)
	return a
}

func (r *reader) pages(from *C.vkattn_pages) *attention.Pages {
	c := option(r, from, "pages")
	if c == nil {
		return nil
	}
	return &attention.Pages{Table: r.vector("pages.table", &c.table), Stride: r.int("pages.stride", c.stride),
		PageSize: r.int("pages.page_size", c.page_size), Count: r.int("pages.count", c.count)}
}

// tables reads a list of tables.
func (r *reader) tables(field string, first *C.vkattn_table, count C.size_t) (list []attention.Table) {
	if count == 0 {
		return nil
	}
	tables, err := elements(first, uint64(count), score.MaxTables, "args->"+field)
	if err != nil {
		r.fail(err)
	}
	for i := range tables {
		t := attention.Table{Vector: r.vector(field+".vector", &tables[i].vector), Name: goString(tables[i].name)}
		for axis, n := range tables[i].dims {
			t.Dims[axis] = r.int(field+".dims", n)
		}
		list = append(list, t)
	}
	return list
}

func (r *reader) backwardArgs(from *C.vkattn_backward_args) (a attention.BackwardArgs) {
	c, err := taken(from, "args")
	if err != nil {
		r.fail(err)
		return a
	}
	if c.forward == nil {
		r.fail(invalid("args->forward is NULL"))
		return a
	}
	a = attention.BackwardArgs{Args: r.args(c.forward), DO: r.tensor("d_o", &c.d_o), DLSE: r.tensor("d_lse", &c.d_lse),
		DQ: r.tensor("d_q", &c.d_q), DK: r.tensor("d_k", &c.d_k), DV: r.tensor("d_v", &c.d_v), DBias: r.tensor("d_bias", &c.d_bias),
		DSinks: r.vector("d_sinks", &c.d_sinks), DTables: r.tables("d_tables", c.d_tables, c.d_table_count), Accumulate: r.bool("accumulate", c.accumulate), PartialKeys: r.bool("partial_keys", c.partial_keys)}
	return a
}

// tensor is a tensor; the zero value if it names no memory.
func (r *reader) tensor(name string, c *C.vkattn_tensor) attention.Tensor {
	t := r.memory(name, unsafe.Pointer(c.buffer), c.data, uint64(c.bytes))
	t.Offset = int64(c.offset)
	t.Strides = attention.Strides{Batch: int64(c.stride_batch), Head: int64(c.stride_head), Seq: int64(c.stride_row)}
	if c.expanded != 0 {
		t.Strides.Expanded = r.bool(name+".expanded", C.int32_t(min(max(c.expanded, -1), 2)))
	}
	return t
}

func (r *reader) vector(name string, c *C.vkattn_vector) attention.Vector {
	t := r.memory(name, unsafe.Pointer(c.buffer), c.data, uint64(c.bytes))
	return attention.Vector{Buffer: t.Buffer, Memory: t.Memory, Host: t.Host, Offset: int64(c.offset)}
}

// memory is what a tensor or a vector lies in.
func (r *reader) memory(name string, h, data unsafe.Pointer, n uint64) (t attention.Tensor) {
	switch {
	case h == nil && data == nil && n == 0:
		return t
	case h != nil && (data != nil || n != 0):
		r.fail(invalid("%s is in both buffer and data, want one of them", name))
		return t
	case h == nil && r.cuda != nil && data != nil:
		m, err := cudapath.WrapMemory(r.cuda.Device, uint64(number(data)), n)
		if err != nil {
			r.fail(fmt.Errorf("%w (%s)", err, name))
		}
		t.Memory = m
		return t
	case h == nil:
		b, err := bytes(data, n, name+".data")
		if err != nil {
			r.fail(err)
		}
		t.Host = b
		return t
	}
	o, b, err := hold[*buffer](r.call, h, C.KIND_BUFFER)
	switch {
	case err != nil:
		r.fail(fmt.Errorf("%w (%s)", err, name))
	case o.home != r.device:
		r.fail(invalid("%s is in a buffer of another device", name))
	default:
		t = b.tensor
	}
	return t
}

func (r *reader) int(name string, n C.int64_t) int {
	if int64(n) != int64(int(n)) {
		r.fail(invalid("%s is %d", name, n))
	}
	return int(n)
}

func (r *reader) bool(name string, n C.int32_t) bool {
	b, err := truth(name, n)
	if err != nil {
		r.fail(err)
	}
	return b
}

// option returns a copy of an optional struct, nil without.
func option[T any](r *reader, from *T, name string) *T {
	if from == nil {
		return nil
	}
	c, err := taken(from, "args->"+name)
	if err != nil {
		r.fail(err)
		return nil
	}
	return &c
}

func truth(name string, n C.int32_t) (bool, error) {
	if n != 0 && n != 1 {
		return false, invalid("%s is %d, want 0 or 1", name, n)
	}
	return n == 1, nil
}

// elements is an array of C.
func elements[T any](p *T, n, most uint64, name string) ([]T, error) {
	switch {
	case n == 0:
		return nil, nil
	case p == nil:
		return nil, invalid("%s is NULL, with %d elements", name, n)
	case n > most:
		return nil, invalid("%s has %d elements, want at most %d", name, n, most)
	}
	return unsafe.Slice(p, n), nil
}

// goString is "" for NULL.
func goString(s *C.char) string { return C.GoString(s) }

// store writes text to an array of C, cut where it does not fit.
func store(to []C.char, text string) {
	n := min(len(text), len(to)-1)
	for i := range n {
		to[i] = C.char(text[i])
	}
	to[n] = 0
}
