package attention

import (
	"fmt"

	"vkattn/vk"
)

// AppendConfig says what kind of rows an Append takes and what it makes of them.
// It is comparable. Head dimensions are those that a [Config] takes.
type AppendConfig struct {
	DType    DType  // storage type of new K, V and Q, and of the cache where KV is KVSame
	HeadDim  int    // elements of a row of Q and K
	HeadDimV int    // elements of a row of V; 0: HeadDim
	KV       KVType // how the cache stores K and V; zero value: as DType
	Rotary   Rotary // of K and Q; zero value: none
	Access   Access // how kernels reach tensors; zero value: as the buffers allow
}

// attention is the Config of a Forward over the cache.
func (c AppendConfig) attention() Config {
	return Config{DType: c.DType, HeadDim: c.HeadDim, HeadDimV: c.HeadDimV, KV: c.KV, Access: c.Access}
}

// Validate reports the first field that is wrong, as a *ShapeError.
func (c AppendConfig) Validate() error {
	if err := c.attention().Validate(); err != nil {
		return err
	}
	return c.Rotary.check(c.HeadDim)
}

// AppendArgs are the tensors of one call. All lie on the same side, device or host.
//
// KCache, VCache, KScale, VScale and QOut are written to; they overlap no other
// tensor, but QOut may be Q itself: the same place with the same strides.
type AppendArgs struct {
	B   int // sequences
	Hkv int // heads of K and V
	Hq  int // heads of Q, a multiple of Hkv; not looked at without Q

	// New rows: New of each sequence in tensors [B, Hkv, New, dim], of which the first
	// UsedNew[b] are there when UsedNew is given; or, with CuNew, packed ones: rows
	// CuNew[b] to CuNew[b+1]-1 of tensors [1, Hkv, TotalNew, dim] are sequence b's, and
	// New is not looked at. They may be none. V and VCache are left out together, as
	// when V is a part of K.
	New      int
	K, V     Tensor
	UsedNew  Vector // int32 [B]
	CuNew    Vector // int32 [B+1], not decreasing
	TotalNew int    // rows of the packed tensors, for CuNew

	// The cache: tensors [B, Hkv, Capacity, dim], or with Pages pools [Count, Hkv,
	// PageSize, dim], in which a sequence has at most Capacity keys (0: as many as a
	// row of the page table has room for). New row i of sequence b goes to position
	// Used[b] + i, which with Pages is row (Used[b] + i) % PageSize of the page that
	// the table gives for it. Without Used all sequences are empty.
	KCache, VCache Tensor
	Capacity       int
	Pages          *Pages
	Used           Vector // int32 [B]
	KScale, VScale Vector // float32, of KVInt8 and KVFP8: [B, Hkv, Capacity], with Pages [Count, Hkv, PageSize]

	// With Config.Rotary: cosines and sines [Positions, Rotary.Dim/2], and optionally
	// the queries of the new rows, [B, Hq, New, HeadDim] or packed [1, Hq, TotalNew,
	// HeadDim], which are rotated as K's row of their number is and go to QOut.
	Cos, Sin  Vector // float32
	Positions int
	Q, QOut   Tensor
}

// Append puts new rows of K and V behind those that a cache has, in the stream or
// command buffer of the attention that reads them, and rotates K and Q on the way:
// the step between the projections of a decoding model and [Op.Forward], and after
// a prefill.
//
// It changes no length: Used stays the caller's, whose Forward takes lengths that
// count the new rows ([Varlen].UsedK). Between the two is a barrier.
//
// # What is written
//
// A row goes nowhere, neither K nor V nor QOut, when its position is Capacity or
// more, or Positions or more with a rotary embedding: what was there stays. The
// same holds for positions and packed offsets below 0, and a row of K or V whose
// page the pool does not have is not written. Kernels hold every number of a
// vector against the sizes of the tensors, so a wrong one never writes outside of
// the cache. Nothing but the rows' own elements (and scales) is changed, neither
// what lies between rows nor what shares a 32-bit word with one. Sequences that
// append to the same place of a shared page leave rows of either.
//
// # Numbers
//
// A rotation is computed in float32, each product rounded, and rounded once to the
// storage type, or quantised once. Elements that are not rotated are copied (a NaN
// is made quiet; devices may flush a subnormal of bf16 or f32 that is rotated). A
// row's bits depend on itself and on its position, not on what else is in the call.
//
// A cache in another type than the rows is quantised from float32, by one scale for
// a row (KVInt8 and KVFP8, so their Config.KVBlock is 1) or for a block of 32
// elements of a row, found from the largest absolute value of its elements, a:
//
//   - KVInt8: scale a/127; element x becomes the integer nearest to x/scale, of
//     two the even one;
//   - KVFP8: scale a/448; x/scale becomes the nearest e4m3, ties to even;
//   - KVQ8_0, as ggml: like KVInt8, but of two the one away from 0, and the scale
//     is rounded to f16 after that;
//   - KVQ4_0, as ggml: scale m/-8, where m is the first element of absolute value
//     a; x becomes x/scale + 8 rounded to the nearest of 0 to 15, halves up; the
//     scale is rounded to f16 after that.
//
// Scales and quotients may be off by a few units of float32 on a device, and with
// them an element that is all but halfway between two numbers. Where a is below
// 2^-100 all elements and the scale are 0; with an Inf or NaN the scale is NaN.
//
// # Ownership, concurrency and errors
//
// These are as for [Op]: methods may be called from many goroutines, each Stream
// and Commands has one owner, tensors stay the caller's, wrong arguments are a
// [*ShapeError] naming the field, and nothing is recorded or written when an
// error returns.
type Append struct {
	dev *vk.Device // nil: the CPU tier
	cfg AppendConfig

	pipelines pipelines[appendVariant, AppendConfig] // at most 6
}

// NewAppend makes an operation. A nil device means the CPU tier; the device stays
// the caller's and must outlive the Append. A wrong field is a *ShapeError; Access that
// the device has not matches [ErrUnsupported].
func NewAppend(dev *vk.Device, cfg AppendConfig) (*Append, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if dev != nil {
		if dev.Closed() {
			return nil, fmt.Errorf("attention: NewAppend: %w", vk.ErrClosed)
		}
		if cfg.Access == AccessAddresses && !dev.Caps().BufferDeviceAddress {
			return nil, fmt.Errorf("%w: the device has no buffer device addresses", ErrUnsupported)
		}
	}
	return &Append{dev: dev, cfg: cfg}, nil
}

// Config is what NewAppend was given.
func (p *Append) Config() AppendConfig {
	if p == nil {
		return AppendConfig{}
	}
	return p.cfg
}

// usable says why the Append cannot be used: nobody made it, or it is closed.
func (p *Append) usable() error {
	switch {
	case p == nil || p.cfg.HeadDim == 0: // which no AppendConfig that NewAppend takes has
		return unmade("NewAppend")
	case p.pipelines.closed.Load():
		return fmt.Errorf("attention: %w", vk.ErrClosed)
	}
	return nil
}

// Prepare compiles what Forward needs, so that the first one does not wait for a
// compiler. On the CPU tier there is nothing to compile. Its errors are those of
// vk.Device.Pipeline.
func (p *Append) Prepare() error {
	if err := p.usable(); err != nil {
		return err
	}
	if p.dev == nil {
		return nil
	}
	for _, task := range appendTasks {
		if task.needsRotary && p.cfg.Rotary.Dim == 0 {
			continue
		}
		if _, err := p.pipelines.of(p.dev, &p.cfg, task.variant(&p.cfg, p.access(nil))); err != nil {
			return err
		}
	}
	return nil
}

// Forward appends rows. On a device the work is recorded into the stream's current
// batch, in order after what was recorded before, and the tensors are held until it
// has run; the caller puts barriers between what computes the new rows, this, and
// what reads the cache and QOut, submits and waits. On the CPU tier the stream is
// nil, tensors are in host memory, and the rows are there when Forward returns. On
// a device it allocates nothing once its kernels are compiled.
func (p *Append) Forward(s *vk.Stream, a AppendArgs) error {
	if err := p.usable(); err != nil {
		return err
	}
	if p.dev == nil {
		if s != nil {
			return invalid("Append.Forward: the CPU tier takes no stream")
		}
		var l appendLayouts
		if err := p.check(&l, &a); err != nil {
			return err
		}
		appendCPU(&p.cfg, &l)
		return nil
	}
	if s.Device() == nil {
		return invalid("Append.Forward: a device tier needs a stream")
	}
	return p.record(s.Commands, &a)
}

// Record puts the dispatches into a command buffer: the caller's, through
// vk.Device.WrapCommands, or a stream's. It inserts no barrier: the caller orders
// what it reads before it and what it writes after it (compute shader reads and
// writes), and keeps the tensors and this Append until the commands have run.
func (p *Append) Record(c *vk.Commands, a AppendArgs) error {
	if err := p.usable(); err != nil {
		return err
	}
	if p.dev == nil {
		return fmt.Errorf("%w: the CPU tier cannot record into a command buffer", ErrUnsupported)
	}
	if c.Device() == nil {
		return invalid("Append.Record: no command buffer")
	}
	return p.record(c, &a)
}

// Close gives the pipelines back to the device; work in flight holds what it uses.
// Close may be called again.
func (p *Append) Close() error {
	if p == nil {
		return nil
	}
	return p.pipelines.close()
}
