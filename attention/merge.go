package attention

import (
	"fmt"

	"vkattn/vk"
)

// MergeConfig says what kind of states a Merge takes. It is comparable.
type MergeConfig struct {
	DType   DType  // storage type of O, that of every state and of the result
	HeadDim int    // elements of a row of O (a Config's HeadDimV), 1 to 512
	Access  Access // how kernels reach tensors; zero value: as the buffers allow
}

// maxMergeHeadDim is the widest row of O there is, see wideHeadDims.
const maxMergeHeadDim = 512

// Validate reports the first field that is wrong, as a *ShapeError.
func (c MergeConfig) Validate() error {
	switch {
	case !c.DType.Valid():
		return &ShapeError{"DType", c.DType, "f16, bf16 or f32"}
	case c.HeadDim < 1 || c.HeadDim > maxMergeHeadDim:
		return &ShapeError{"HeadDim", c.HeadDim, fmt.Sprintf("1 to %d", maxMergeHeadDim)}
	case !c.Access.Valid():
		return &ShapeError{"Access", c.Access, "auto, addresses or descriptors"}
	}
	return nil
}

// MaxStates bounds the states of one merge.
const MaxStates = 256

// States are attention states of the same rows over different keys: what
// [Op.Forward] leaves in O and LSE. They are one state, or Count of them at
// equal distances in memory, as a split over keys or a gather from devices
// leaves them.
type States struct {
	O       Tensor // [B, Hq, Sq, HeadDim] of the first state
	LSE     Tensor // [B, Hq, Sq] of the first state: float32, packed, natural logarithm
	Count   int    // 0: 1
	StepO   int64  // elements from one state's O to the next one's; 0: B*Hq*Sq*HeadDim, one after another
	StepLSE int64  // elements from one state's LSE to the next one's; 0: B*Hq*Sq
}

// given reports whether the caller filled in any of it, so that what was begun
// and forgotten is an error.
func (s *States) given() bool {
	return s.O.begun() || s.LSE.begun() || s.Count != 0 || s.StepO != 0 || s.StepLSE != 0
}

func (t *Tensor) begun() bool { return t.Given() || t.Offset != 0 || t.Strides != (Strides{}) }

// MergeArgs are the tensors of one merge. All lie on the same side, device or
// host. States may overlap one another. O may be exactly the O of one of the
// states, at the same place with the same strides, and LSE exactly one's LSE;
// otherwise they overlap nothing.
type MergeArgs struct {
	Shape                // B, Hq and Sq; Hkv and Sk are not looked at
	First, Second States // Second may be left out
	O             Tensor
	LSE           Tensor // optional; float32, packed [B, Hq, Sq]
}

// Merge combines attention states of the same query rows over disjoint sets of
// keys into the state over all of those keys (merge_state, merge_states or
// merge_attn_states elsewhere):
//
//	LSE = log(Σ exp(LSEᵢ))    O = Σ exp(LSEᵢ - LSE) Oᵢ
//
// It is what a shared prefix computed once for many sequences (cascade
// attention), keys split over workgroups, and keys spread over devices need. Up
// to [MaxStates] states are merged in one pass: two of them anywhere in memory,
// or two groups of states at equal distances. More levels fold into the result
// in place.
//
// # Numbers
//
// Weights and sums are float32, taken relative to the largest LSE of the row,
// so that no LSE is too large or too small.
//
//   - A state with LSE = -Inf contributes nothing, and neither does one more
//     than 80 below the row's largest; its O may hold anything, NaN and Inf
//     included. A row in which all states are -Inf gives O = 0 and LSE = -Inf.
//   - An LSE of NaN or +Inf, as of a row of Forward with such a score, makes the
//     row's O and LSE NaN. A NaN or Inf in O reaches its column of its row.
//   - A row with one contributing state gets that state's numbers unchanged (but
//     for subnormals of bf16 and f32, which devices may flush to 0).
//   - States are summed in order, those of First before those of Second. The
//     same arguments give the same bits on every run, and two states the same
//     bits in either order.
//
// O was rounded to the storage type with each state, by at most half a unit in
// the last place, and is rounded once more: O is off from the exact merge of
// what the states were before that by the weighted mean of their roundings and
// its own, so at most one unit of the largest |Oᵢ|; a chain of merges adds half
// a unit a link. The roundings of LSE matter where it is large: half a unit of
// 1e4 is 5e-4, and weights are off by that factor.
//
// # Ownership, concurrency and errors
//
// These are as for [Op]: methods may be called from many goroutines, each Stream
// and Commands has one owner, tensors stay the caller's, wrong arguments are a
// [*ShapeError] naming the field, and nothing is recorded or written when an
// error returns.
type Merge struct {
	dev *vk.Device // nil: the CPU tier
	cfg MergeConfig

	pipelines pipelines[mergeVariant, MergeConfig] // at most 16
}

// NewMerge makes an operation. A nil device means the CPU tier; the device stays
// the caller's and must outlive the Merge. A wrong field is a *ShapeError; Access that
// the device has not matches [ErrUnsupported].
func NewMerge(dev *vk.Device, cfg MergeConfig) (*Merge, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if dev != nil {
		if dev.Closed() {
			return nil, fmt.Errorf("attention: NewMerge: %w", vk.ErrClosed)
		}
		if cfg.Access == AccessAddresses && !dev.Caps().BufferDeviceAddress {
			return nil, fmt.Errorf("%w: the device has no buffer device addresses", ErrUnsupported)
		}
	}
	return &Merge{dev: dev, cfg: cfg}, nil
}

// Config is what NewMerge was given.
func (m *Merge) Config() MergeConfig {
	if m == nil {
		return MergeConfig{}
	}
	return m.cfg
}

// usable says why the Merge cannot be used: nobody made it, or it is closed.
func (m *Merge) usable() error {
	switch {
	case m == nil || m.cfg.HeadDim == 0: // which no MergeConfig that NewMerge takes has
		return unmade("NewMerge")
	case m.pipelines.closed.Load():
		return fmt.Errorf("attention: %w", vk.ErrClosed)
	}
	return nil
}

// Prepare compiles what Forward needs for packed, aligned tensors, without and
// with LSE, so that the first Forward does not wait for a compiler. On the CPU tier there
// is nothing to compile. Its errors are those of vk.Device.Pipeline.
func (m *Merge) Prepare() error {
	if err := m.usable(); err != nil {
		return err
	}
	if m.dev == nil {
		return nil
	}
	v := mergeVariant{access: m.access(nil), align: largestAlignment(uint64(m.cfg.HeadDim))}
	for _, v.lse = range []bool{false, true} {
		if _, err := m.pipelines.of(m.dev, &m.cfg, v); err != nil {
			return err
		}
	}
	return nil
}

// Forward merges states. On a device the work is recorded into the stream's
// current batch, in order after what was recorded before, and the tensors are
// held until it has run; the caller puts a barrier between what computes the
// states and this, submits and waits. On the CPU tier the stream is nil, tensors
// are in host memory, and the result is there when Forward returns. On a device
// it allocates nothing once its kernel is compiled.
func (m *Merge) Forward(s *vk.Stream, a MergeArgs) error {
	if err := m.usable(); err != nil {
		return err
	}
	if m.dev == nil {
		if s != nil {
			return invalid("Merge.Forward: the CPU tier takes no stream")
		}
		var l mergeLayouts
		if err := m.check(&l, &a); err != nil {
			return err
		}
		return mergeCPU(m.cfg, &l)
	}
	if s.Device() == nil {
		return invalid("Merge.Forward: a device tier needs a stream")
	}
	return m.record(s.Commands, &a)
}

// Record puts the dispatches into a command buffer: the caller's, through
// vk.Device.WrapCommands, or a stream's. It inserts no barrier: the caller
// orders the states before it and the result after it (compute shader reads and
// writes), and keeps the tensors and this Merge until the commands have run.
func (m *Merge) Record(c *vk.Commands, a MergeArgs) error {
	if err := m.usable(); err != nil {
		return err
	}
	if m.dev == nil {
		return fmt.Errorf("%w: the CPU tier cannot record into a command buffer", ErrUnsupported)
	}
	if c.Device() == nil {
		return invalid("Merge.Record: no command buffer")
	}
	return m.record(c, &a)
}

// Close gives the pipelines back to the device; work in flight holds what it uses.
// Close may be called again.
func (m *Merge) Close() error {
	if m == nil {
		return nil
	}
	return m.pipelines.close()
}
