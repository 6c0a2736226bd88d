package merge

import (
	"errors"
	"fmt"

	"vkattn/attention"
	"vkattn/internal/backend"
	"vkattn/internal/dispatch"
	"vkattn/internal/errs"
	"vkattn/internal/problem"
	"vkattn/internal/tensors"
	"vkattn/vk"
)

// MergeConfig says what states a Merge takes. It is comparable.
type MergeConfig struct {
	DType   attention.DType  // storage type of O, in the result and, without F32States, in every state
	HeadDim int              // elements per row of O (a Config's HeadDimV), 1 to 512
	Access  attention.Access // how kernels reach tensors; zero value: chosen by the buffers

	// F32States takes states whose O is float32 whatever DType, as an Op with Config.F32O
	// writes them. The result is then rounded once, and lies in memory of its own if its type
	// is another one.
	F32States bool
}

// stateType is the storage type of O in the states.
func (c MergeConfig) stateType() problem.DType {
	if c.F32States {
		return problem.F32
	}
	return c.DType
}

// maxMergeHeadDim is the widest row of O, see wideHeadDims.
const maxMergeHeadDim = 512

// Validate reports the first field that is wrong, as a *ShapeError.
func (c MergeConfig) Validate() error {
	switch {
	case !c.DType.Valid():
		return &problem.ShapeError{Field: "DType", Got: c.DType, Want: "f16, bf16 or f32"}
	case c.HeadDim < 1 || c.HeadDim > maxMergeHeadDim:
		return &problem.ShapeError{Field: "HeadDim", Got: c.HeadDim, Want: fmt.Sprintf("1 to %d", maxMergeHeadDim)}
	case !c.Access.Valid():
		return &problem.ShapeError{Field: "Access", Got: c.Access, Want: "auto, addresses or descriptors"}
	}
	return nil
}

// States are attention states of the same rows over different keys: the O and LSE of
// attention.Op.Forward. They are one state, or Count states at equal distances in memory, as a
// split over keys or a gather from several devices produces them.
type States struct {
	O       attention.Tensor // [B, Hq, Sq, HeadDim] of the first state
	LSE     attention.Tensor // [B, Hq, Sq] of the first state: float32, packed, natural logarithm
	Count   int              // states; 0: 1
	StepO   int64            // elements between the O of consecutive states; 0: B*Hq*Sq*HeadDim
	StepLSE int64            // elements between the LSE of consecutive states; 0: B*Hq*Sq
}

// given reports whether the caller set any field, so that a half-filled group is an
// error.
func (s *States) given() bool {
	return tensors.TensorBegun(&s.O) || tensors.TensorBegun(&s.LSE) || s.Count != 0 || s.StepO != 0 || s.StepLSE != 0
}

// MergeArgs are the tensors of one merge. All lie on the same side, device or host.
// States may overlap one another. O may be exactly the O of one of the states, with the
// same memory and strides, and LSE exactly the LSE of one. Otherwise O and LSE must not
// overlap anything.
type MergeArgs struct {
	attention.Shape        // B, Hq and Sq, of which B and Sq may be 0; Hkv and Sk are ignored
	First, Second   States // Second is optional
	O               attention.Tensor
	LSE             attention.Tensor // optional; float32, packed [B, Hq, Sq]
}

// Merge combines attention states of the same query rows over disjoint sets of keys
// into the state over all of those keys. FlashInfer calls it merge_state and
// merge_states, vLLM merge_attn_states.
//
//	LSE = log(Σ exp(LSEᵢ))    O = Σ exp(LSEᵢ - LSE) Oᵢ
//
// Use it for a shared prefix computed once for many sequences (cascade attention), for
// keys split over workgroups, and for keys spread over devices. One pass merges up to
// [attention.MaxStates] states: two of them anywhere in memory, or two groups of states at
// equal distances. Further levels merge into the result in place.
//
// # Numbers
//
// Weights and sums are float32 and relative to the row's largest LSE, so any finite LSE
// is allowed.
//
//   - A state with LSE = -Inf contributes nothing, and neither does one more than 80
//     below the row's largest. Its O may hold anything, NaN and Inf included. A row
//     whose states all have LSE = -Inf gives O = 0 and LSE = -Inf.
//   - An LSE of NaN or +Inf makes the row's O and LSE NaN. Forward writes such an LSE if
//     a score is NaN or +Inf. A NaN or Inf in O reaches its column of its row.
//   - A row with one contributing state gets that state's numbers unchanged, except that
//     devices may flush subnormals of bf16 and f32 to 0.
//   - States are summed in order, First before Second. The same arguments give the same
//     bits on every run. Two states give the same bits in either order.
//
// The O of each state was rounded to the storage type, by at most half a unit in the
// last place, and the result is rounded once more. Compared with the exact merge of the
// unrounded states, O is off by at most one unit in the last place of the largest |Oᵢ|.
// A chain of merges adds half a unit per link. The rounding of LSE matters if LSE is
// large: half a unit of 1e4 is 5e-4, a relative error of the weights.
//
// # Ownership, concurrency and errors
//
// As for attention.Op: methods are safe for concurrent use, a Stream or Commands has one owner,
// and tensors stay the caller's. Wrong arguments give a [*attention.ShapeError] that names the
// field. If a method returns an error, it has recorded and written nothing.
type Merge struct {
	home  backend.Home // of the default stream
	on    tensors.Place
	dev   *vk.Device    // on.Vulkan
	other backend.Merge // where on.Other is a device
	cfg   MergeConfig
	sum   bool // of a Sum: states have no LSE

	pipelines dispatch.Pipelines[mergeVariant, MergeConfig] // at most 16
}

// NewMerge makes an operation. A nil device is the CPU. The device stays the
// caller's and must outlive the Merge. A wrong field gives a *ShapeError; an Access that
// the device lacks gives an error that matches [attention.ErrUnsupported].
func NewMerge(d *attention.Device, cfg MergeConfig) (*Merge, error) {
	return newMerge(d, cfg, false)
}

func newMerge(d *attention.Device, cfg MergeConfig, sum bool) (*Merge, error) {
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
	m := &Merge{home: home, on: on, dev: on.Vulkan, cfg: cfg, sum: sum}
	if on.Other != nil {
		m.other, err = home.Backend().Kernels().Merge(backend.MergeConfig{DType: cfg.DType, StateType: cfg.stateType(), HeadDim: cfg.HeadDim, Sum: sum})
		if err != nil {
			return nil, err
		}
	}
	return m, nil
}

// Config returns the MergeConfig that NewMerge was given.
func (m *Merge) Config() MergeConfig {
	if m == nil {
		return MergeConfig{}
	}
	return m.cfg
}

// usable reports why the Merge cannot be used: NewMerge did not make it, or it is closed.
func (m *Merge) usable() error {
	switch {
	case m == nil || m.cfg.HeadDim == 0: // NewMerge accepts no MergeConfig with HeadDim 0
		return errs.Unmade("NewMerge")
	case m.pipelines.IsClosed():
		return errs.ClosedOp
	}
	return nil
}

// Prepare compiles the kernels that Forward needs for packed, aligned tensors, with and
// without LSE, so that the first Forward does not wait for the compiler. On the CPU tier
// it compiles nothing. It returns the errors of vk.Device.Pipeline.
func (m *Merge) Prepare() error {
	if err := m.usable(); err != nil {
		return err
	}
	switch {
	case m.other != nil:
		return m.other.Prepare()
	case m.dev == nil:
		return nil
	}
	v := mergeVariant{access: m.access(nil), align: tensors.LargestAlignment(uint64(m.cfg.HeadDim))}
	for _, v.lse = range []bool{false, true} {
		if _, err := m.pipelines.Of(m.dev, &m.cfg, v); err != nil {
			return err
		}
	}
	return nil
}

// Forward merges states, in the order of the stream, as attention.Op.Forward does. On the CPU the result is complete when
// it returns; on a Vulkan device it allocates nothing once its kernel is compiled.
func (m *Merge) Forward(s *attention.Stream, a MergeArgs) error {
	if err := m.usable(); err != nil {
		return err
	}
	b, err := m.home.Begin("Merge.Forward", problem.StreamBackingOf(s), s == nil)
	if err != nil {
		return err
	}
	return m.home.End(s == nil, m.forward(b, &a))
}

func (m *Merge) forward(s backend.Stream, a *MergeArgs) error {
	if m.dev != nil {
		return m.record(s.Vulkan().Commands, a)
	}
	var l mergeLayouts
	switch err := m.check(&l, a); {
	case err != nil:
		return err
	case m.other != nil:
		return m.other.Merge(s, l.call())
	case m.sum:
		sumCPU(m.cfg, &l)
	default:
		mergeCPU(m.cfg, &l)
	}
	return nil
}

// Record records the dispatches into a command buffer: the caller's, wrapped by
// vk.Device.WrapCommands, or a stream's. Into the caller's it inserts no barrier: the caller orders the
// states before the dispatches and the result after them (compute shader reads and
// writes), and keeps the tensors and this Merge until the commands have run.
func (m *Merge) Record(c *vk.Commands, a MergeArgs) error {
	if err := m.usable(); err != nil {
		return err
	}
	if err := errs.CheckCommands("Merge.Record", c, m.dev); err != nil {
		return err
	}
	return m.record(c, &a)
}

// Close gives the pipelines back to the device; work in flight holds what it uses.
// Close may be called again.
func (m *Merge) Close() error {
	if m == nil {
		return nil
	}
	if m.other != nil && !m.pipelines.IsClosed() {
		return errors.Join(m.pipelines.Close(), m.other.Close())
	}
	return m.pipelines.Close()
}
