package kvcache

import (
	"errors"
	"os"

	"vkattn/attention"
	"vkattn/internal/backend"
	"vkattn/internal/dispatch"
	"vkattn/internal/errs"
	"vkattn/internal/problem"
	"vkattn/internal/tensors"
	"vkattn/vk"
)

// AppendConfig says what rows an Append takes and how it stores them. It is comparable.
// It allows the head dimensions of [attention.Config].
type AppendConfig struct {
	DType              attention.DType  // storage type of new K, V and Q, and of the cache if KeyType is KVSame
	HeadDim            int              // elements per row of Q and K
	HeadDimV           int              // elements per row of V; 0: HeadDim
	KeyType, ValueType attention.KVType // how the cache stores K and V, as in [attention.Config]; zero value: as DType
	KVBlock            int              // of Scaled types: 0: Append finds a scale of each row; KVBlockHead or KVBlockTensor: it reads the scales
	Rotary             Rotary           // rotary embedding of K and Q; zero value: none
	CosSinOfDType      bool             // cosines and sines are of DType, not float32
	Access             attention.Access // how kernels reach tensors; zero value: chosen by the buffers
	Check              bool             // Forward refuses numbers in device memory that are out of range, as [attention.Config].Check
}

// attention returns the Config of a Forward over the cache.
func (c AppendConfig) attention() problem.Config {
	return problem.Config{DType: c.DType, HeadDim: c.HeadDim, HeadDimV: c.HeadDimV, KeyType: c.KeyType, ValueType: c.ValueType,
		KVBlock: c.KVBlock, Access: c.Access}
}

// Validate reports the first field that is wrong, as a *ShapeError.
func (c AppendConfig) Validate() error {
	if err := c.attention().Validate(); err != nil {
		return err
	}
	if c.KVBlock > 0 {
		return &attention.ShapeError{Field: "KVBlock", Got: c.KVBlock, Want: "0, a scale of each row, or -1 or -2 for given scales of heads or of the tensor"}
	}
	if c.CosSinOfDType && c.Rotary.Dim == 0 {
		return &attention.ShapeError{Field: "CosSinOfDType", Got: true, Want: problem.Phrase("false without ${Rotary}")}
	}
	return c.Rotary.check(c.HeadDim)
}

// AppendArgs are the tensors of one call. All lie on the same side, device or host.
//
// Append writes KCache, VCache, QOut and, without KVBlock, KScale and VScale. They must not overlap another
// tensor, except that QOut may be exactly Q: the same memory with the same strides.
type AppendArgs struct {
	B   int // sequences; may be 0
	Hkv int // heads of K and V
	Hq  int // heads of Q, a multiple of Hkv; ignored without Q

	// New rows, by default New of each sequence in tensors [B, Hkv, New, dim]. With
	// UsedNew only the first UsedNew[b] of them exist. With CuNew they are packed: rows
	// CuNew[b] to CuNew[b+1]-1 of tensors [1, Hkv, TotalNew, dim] belong to sequence b,
	// and New is ignored. A sequence may have no new rows. V and VCache are either both
	// given or both left out, for example if V is a part of K.
	New      int
	K, V     attention.Tensor
	UsedNew  attention.Vector // int32 [B]
	CuNew    attention.Vector // int32 [B+1], not decreasing
	TotalNew int              // rows of the packed tensors, for CuNew; may be 0

	// The cache: tensors [B, Hkv, Capacity, dim]; with Pages, pools [Count, Hkv,
	// PageSize, dim], in which a sequence has at most Capacity keys (0: as many as a row
	// of the block table can address). New row i of sequence b goes to position
	// p = Used[b] + i. With Pages that is row p % PageSize of page Table[b, p / PageSize].
	// Without Used all sequences are empty.
	KCache, VCache attention.Tensor
	Capacity       int
	Pages          *attention.Pages
	Used           attention.Vector // int32 [B]
	Shard          bool             // the cache holds a part of each sequence: rows outside of it are skipped, and no mistake
	KScale, VScale attention.Vector // float32, for Scaled types: [B, Hkv, Capacity], with Pages [Count, Hkv, PageSize]; read with KVBlockHead [Hkv], KVBlockTensor [1]

	// With Config.Rotary: cosines and sines [Positions, Rotary.Dim/2]. Q is optional: the
	// queries of the new rows, [B, Hq, New, HeadDim] or packed [1, Hq, TotalNew,
	// HeadDim]. They are rotated like K's row of the same index and written to QOut.
	// With RowsQ Q is [B, Hq, RowsQ, HeadDim] whatever New, UsedNew and the cache hold.
	Cos, Sin  attention.Vector // float32, or of DType
	Positions int
	Q, QOut   attention.Tensor
	RowsQ     int  // rows of Q per sequence, if they are not the new rows; not with CuNew
	QAtUsed   bool // all rows of Q are rotated as at position Used[b], where attention has no mask by position
}

// Append writes new rows of K and V behind the keys that a cache holds. With a rotary
// embedding it also rotates K and Q. It runs in the same stream or command buffer as the
// attention that reads the cache: between the projections of a model and
// attention.Op.Forward when decoding, and after a prefill.
//
// Append changes no lengths. The caller updates Used and gives Forward lengths that count
// the new rows ([attention.Varlen].UsedK).
//
// # What is written
//
// A row of K and V whose position is negative, at least Capacity, or with a rotary
// embedding at least Positions, is skipped, and so is a row of Q whose position is
// negative or at least Positions: the cache and QOut keep what they held. So is a row
// whose packed offset is negative, and for K and V a row whose page the pool lacks.
// Kernels compare every number of a vector with the sizes of the tensors, so a wrong number
// never writes outside of the cache. A call in host memory refuses such a number, unless
// Shard says that rows may lie outside: a full cache is an error. Only the rows' own elements and scales change, not
// the gaps between rows and not other elements of the same 32-bit word. If sequences
// append to the same row of a shared page, either row may remain.
//
// # Numbers
//
// A rotation is computed in float32, each product rounded, and rounded once to the
// storage type, or quantized once. Elements that are not rotated are copied. A NaN
// becomes quiet, and devices may flush a subnormal of bf16 or f32 that is rotated. A
// row's bits depend on the row and its position only.
//
// A quantized cache is quantized from float32. There is one scale per row (Scaled types,
// so their Config.KVBlock is 1, without AppendConfig.KVBlock) or per block of 32 elements of a row. The scale follows
// from a, the largest absolute value of the row or block, or from m, the first element of
// that absolute value, with its sign:
//
//   - KVInt8: scale a/127; element x becomes the integer nearest to x/scale, ties to
//     even;
//   - KVFP8: scale a/448; x/scale becomes the nearest e4m3, ties to even;
//   - KVFP8E5M2: scale a/57344; x/scale becomes the nearest finite e5m2, ties to even;
//   - KVQ8_0, as in ggml: like KVInt8 with ties away from 0; the scale is rounded to f16
//     afterwards;
//   - KVQ4_0 and KVQ5_0, as in ggml: scale m/-8 or m/-16; x becomes x/scale + 8 or 16
//     rounded to the nearest of 0 to 15 or 31, ties up; the scale is rounded to f16
//     afterwards;
//   - KVQ4_1 and KVQ5_1, as in ggml: scale (largest - least)/15 or 31; x becomes
//     (x - least)/scale rounded to the nearest, ties up; scale and least element are rounded
//     to f16 afterwards;
//   - KVIQ4NL: scale m/-127; x/scale becomes the nearest number of the table, ties up. The
//     scale is rounded to f16 afterwards. ggml searches for a better scale;
//   - KVFP8DSMLA, as in vLLM: for each 128 of the first 512 elements scale a/448, and
//     numbers as KVFP8; the other 64 become bf16. The call has no V.
//
// On a device, scales and quotients may be off by a few units of float32, and so may an
// element that lies almost halfway between two numbers. If a is below 2^-100, all
// elements and the scale are 0, the scale of KVFP8DSMLA 2^-126. With an Inf or NaN the scale is NaN.
//
// With AppendConfig.KVBlock Append reads the scales, of heads or of the tensor, and changes none. x/scale becomes the nearest
// number, ties to even; what is beyond the largest number, Inf too, becomes the largest, and NaN becomes NaN, or 0 in
// KVInt8. With a scale that is not finite, or below 2^-100 in magnitude, all elements are 0.
//
// # Ownership, concurrency and errors
//
// As for attention.Op: methods are safe for concurrent use, a Stream or Commands has one owner,
// and tensors stay the caller's. Wrong arguments give a [*attention.ShapeError] that names the
// field. If a method returns an error, it has recorded and written nothing.
type Append struct {
	home  backend.Home // of the default stream
	on    tensors.Place
	dev   *vk.Device     // on.Vulkan
	other backend.Append // where on.Other is a device
	cfg   AppendConfig

	checks    bool                                            // by attention.CheckEnv
	pipelines dispatch.Pipelines[appendVariant, AppendConfig] // at most 6
}

// NewAppend makes an operation. A nil device is the CPU. The device stays the
// caller's and must outlive the Append. A wrong field gives a *ShapeError; an Access that
// the device lacks gives an error that matches [attention.ErrUnsupported].
func NewAppend(d *attention.Device, cfg AppendConfig) (*Append, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if d == nil {
		d = attention.On(nil)
	}
	home := backend.HomeOf(d)
	on, err := backend.PlaceOf(home.Backend(), cfg.Access)
	if err != nil {
		return nil, err
	}
	p := &Append{home: home, on: on, dev: on.Vulkan, cfg: cfg, checks: !on.CPU() && os.Getenv(attention.CheckEnv) == "1"}
	if on.Other != nil {
		p.other, err = home.Backend().Kernels().Append(backend.AppendConfig{DType: cfg.DType, HeadDim: cfg.HeadDim, HeadDimV: cfg.attention().ValueDim(),
			KeyType: cfg.KeyType, ValueType: cfg.ValueType, RotaryDim: cfg.Rotary.Dim, RotaryFirst: cfg.Rotary.First, RotaryHalfSplit: cfg.Rotary.Style == RotaryHalfSplit,
			CosSinOfDType: cfg.CosSinOfDType})
		if err != nil {
			return nil, err
		}
	}
	return p, nil
}

// Config returns the AppendConfig that NewAppend was given.
func (p *Append) Config() AppendConfig {
	if p == nil {
		return AppendConfig{}
	}
	return p.cfg
}

// usable reports why the Append cannot be used: NewAppend did not make it, or it is closed.
func (p *Append) usable() error {
	switch {
	case p == nil || p.cfg.HeadDim == 0: // NewAppend accepts no AppendConfig with HeadDim 0
		return errs.Unmade("NewAppend")
	case p.pipelines.IsClosed():
		return errs.ClosedOp
	}
	return nil
}

// Prepare compiles the kernels that Forward needs, so that the first Forward does not wait
// for the compiler. On the CPU tier it compiles nothing. It returns the errors of
// vk.Device.Pipeline.
func (p *Append) Prepare() error {
	if err := p.usable(); err != nil {
		return err
	}
	switch {
	case p.other != nil:
		return p.other.Prepare()
	case p.dev == nil:
		return nil
	}
	for _, task := range appendTasks {
		if task.needsRotary && p.cfg.Rotary.Dim == 0 {
			continue
		}
		if _, err := p.pipelines.Of(p.dev, &p.cfg, task.variant(&p.cfg, p.access(nil))); err != nil {
			return err
		}
	}
	return nil
}

// Forward appends rows, in the order of the stream, as attention.Op.Forward does. On the CPU the rows are written when it
// returns; on a Vulkan device it allocates nothing once its kernels are compiled.
func (p *Append) Forward(s *attention.Stream, a AppendArgs) error {
	if err := p.usable(); err != nil {
		return err
	}
	b, err := p.home.Begin("Append.Forward", problem.StreamBackingOf(s), s == nil)
	if err != nil {
		return err
	}
	return p.home.End(s == nil, p.forward(b, &a))
}

func (p *Append) forward(s backend.Stream, a *AppendArgs) error {
	if p.dev != nil {
		if err := p.checkDeviceNumbers(s, a); err != nil {
			return err
		}
		return p.record(s.Vulkan().Commands, a)
	}
	var l appendLayouts
	switch err := p.check(&l, a); {
	case err != nil || a.B == 0:
		return err
	case p.other == nil:
		appendCPU(&p.cfg, &l)
		return nil
	}
	if err := p.checkDeviceNumbers(s, a); err != nil {
		return err
	}
	return p.other.Append(s, l.call())
}

// Record records the dispatches into a command buffer: the caller's, wrapped by
// vk.Device.WrapCommands, or a stream's. Into the caller's it inserts no barrier: the caller orders what
// the dispatches read before them and what they write after them (compute shader reads
// and writes), and keeps the tensors and this Append until the commands have run.
func (p *Append) Record(c *vk.Commands, a AppendArgs) error {
	if err := p.usable(); err != nil {
		return err
	}
	if err := errs.CheckCommands("Append.Record", c, p.dev); err != nil {
		return err
	}
	return p.record(c, &a)
}

// Close releases the pipelines; work in flight holds what it uses. Close is idempotent.
func (p *Append) Close() error {
	if p == nil {
		return nil
	}
	if p.other != nil && !p.pipelines.IsClosed() {
		return errors.Join(p.pipelines.Close(), p.other.Close())
	}
	return p.pipelines.Close()
}
