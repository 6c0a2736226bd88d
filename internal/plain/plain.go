// Package plain is plain attention on a Vulkan device: scores and probabilities of all rows
// and keys lie in memory. S = scale Q Kᵀ, P = softmax(S), O = P V, each product one dispatch
// over all heads of all batches. Package attention never does this; benchmarks compare with
// it.
//
// Scores are stored in the storage type: f16 and bf16 on tiers coopmat and coopmat2, whose
// products sum in float32, f32 on tier scalar. P is stored over S, and dS over dP. The
// backward pass keeps P of the forward pass and computes dV = Pᵀ dO, dP = dO Vᵀ, dS = P
// (dP - rowsum(P dP)), dQ = scale dS K, dK = scale dSᵀ Q.
package plain

import (
	"errors"
	"fmt"
	"math"

	"vkattn/internal/dispatch"
	"vkattn/internal/hostmem"
	"vkattn/internal/problem"
	"vkattn/shaders"
	"vkattn/vk"
)

// Op is plain attention of one shape. It is used by one goroutine at a time.
type Op struct {
	dev   *vk.Device
	cfg   problem.Config
	shape problem.Shape
	tile  tile
	made  dispatch.Pipelines[variant, tile]
	p, d  *vk.Buffer // S and P; dP and dS
}

// New allocates the scores of a shape, and the scores of a backward pass if backward is
// set. The error matches vk.ErrOutOfMemory if the device lacks the memory, before anything
// is allocated, and vk.ErrUnsupported if the tier cannot compute the problem.
func New(dev *vk.Device, cfg problem.Config, shape problem.Shape, backward bool) (*Op, error) {
	if err := Check(cfg, shape); err != nil {
		return nil, err
	}
	if why := dev.Caps().Without(dispatch.NeedAddresses); why != "" {
		return nil, unsupported("%s", why)
	}
	o := &Op{dev: dev, cfg: cfg, shape: shape}
	var err error
	if o.tile, err = chooseTile(dev.Caps(), cfg, shape); err != nil {
		return nil, err
	}
	total := Bytes(cfg, shape, backward)
	if err := dev.CheckMemory("plain attention", total); err != nil {
		return nil, err
	}
	size := Bytes(cfg, shape, false)
	if o.p, err = dev.NewBuffer(size, vk.BufferOptions{Name: "P"}); err != nil {
		return nil, err
	}
	if backward {
		if o.d, err = dev.NewBuffer(size, vk.BufferOptions{Name: "dP"}); err != nil {
			return nil, errors.Join(err, o.Close())
		}
	}
	return o, nil
}

// Tier is the tier of the products.
func (o *Op) Tier() problem.Tier {
	if o.tile.subgroup == 0 {
		return problem.TierScalar
	}
	return problem.TierCoopMat
}

// Tile names the tile of the products, such as "128x128x32".
func (o *Op) Tile() string { return fmt.Sprintf("%dx%dx%d", o.tile.m, o.tile.n, o.tile.k) }

// Close releases the pipelines and the memory.
func (o *Op) Close() error {
	err := o.made.Close()
	for _, b := range []*vk.Buffer{o.p, o.d} {
		if b != nil {
			err = errors.Join(err, b.Close())
		}
	}
	return err
}

// Forward records O of a call on the device. P stays in memory for Backward. LSE is not
// written.
func (o *Op) Forward(s *vk.Stream, a problem.Args) error {
	q, k, v, out, err := o.tensors(&a)
	if err != nil {
		return err
	}
	p, group, scale := o.scores(o.p), uint32(o.shape.Group()), o.cfg.ScaleValue()
	sq, sk, dim, dimV := o.sizes()
	return first(
		func() error {
			return o.gemm(s, product{a: q, b: k, c: p, transB: true, m: sq, n: sk, k: dim, heads: o.shape.Hq, groupB: group, alpha: scale})
		},
		s.Barrier,
		func() error { return o.softmax(s, false) },
		s.Barrier,
		func() error {
			return o.gemm(s, product{a: p, b: v, c: out, m: sq, n: dimV, k: sk, heads: o.shape.Hq, groupB: group, alpha: 1})
		},
	)
}

// Backward records dQ, dK and dV, all of them, of the call whose Forward was the last.
func (o *Op) Backward(s *vk.Stream, a problem.BackwardArgs) error {
	if o.d == nil {
		return errors.New("plain attention was made without a backward pass")
	}
	q, k, v, _, err := o.tensors(&a.Args)
	if err != nil {
		return err
	}
	if a.Accumulate || a.DLSE.Given() {
		return unsupported("plain attention takes no gradient of LSE and does not accumulate")
	}
	hkv, dim, dimV := o.shape.KVHeads(), o.cfg.HeadDim, o.cfg.ValueDim()
	var list [4]matrix
	for i, t := range []struct {
		t           problem.Tensor
		heads, rows int
		dim         int
	}{{a.DO, o.shape.Hq, o.shape.Sq, dimV}, {a.DQ, o.shape.Hq, o.shape.Sq, dim}, {a.DK, hkv, o.shape.Sk, dim}, {a.DV, hkv, o.shape.Sk, dimV}} {
		if list[i], err = o.tensor(t.t, t.heads, t.rows, t.dim); err != nil {
			return err
		}
	}
	do, dq, dk, dv := list[0], list[1], list[2], list[3]
	p, d, group, scale := o.scores(o.p), o.scores(o.d), uint32(o.shape.Group()), o.cfg.ScaleValue()
	m, n, depth, depthV := o.sizes()
	return first(
		func() error {
			return o.gemm(s, product{a: p, b: do, c: dv, transA: true, m: n, n: depthV, k: m, heads: hkv, repeat: group, alpha: 1})
		},
		func() error {
			return o.gemm(s, product{a: do, b: v, c: d, transB: true, m: m, n: n, k: depthV, heads: o.shape.Hq, groupB: group, alpha: 1})
		},
		s.Barrier,
		func() error { return o.softmax(s, true) },
		s.Barrier,
		func() error {
			return o.gemm(s, product{a: d, b: k, c: dq, m: m, n: depth, k: n, heads: o.shape.Hq, groupB: group, alpha: scale})
		},
		func() error {
			return o.gemm(s, product{a: d, b: q, c: dk, transA: true, m: n, n: depth, k: m, heads: hkv, repeat: group, alpha: scale})
		},
	)
}

func (o *Op) sizes() (sq, sk, dim, dimV uint32) {
	return uint32(o.shape.Sq), uint32(o.shape.Sk), uint32(o.cfg.HeadDim), uint32(o.cfg.ValueDim())
}

// softmaxLocal is the workgroup size of the softmax kernel, a power of 2.
const softmaxLocal = 128

// softmaxParams is the push constant block of shaders/plain_softmax.comp.
type softmaxParams struct {
	addrP, addrD uint64
	rows, stride uint32
	sq, sk       uint32
	causal       uint32
	causalOffset int32
}

func (o *Op) softmax(s *vk.Stream, backward bool) error {
	pipeline, err := o.made.Of(o.dev, &o.tile, variant{softmax: true, backward: backward, dtype: o.cfg.DType})
	if err != nil {
		return err
	}
	rows := uint32(o.shape.Rows())
	push := softmaxParams{addrP: o.p.Address(), rows: rows, stride: uint32(stride(o.shape.Sk)), sq: uint32(o.shape.Sq), sk: uint32(o.shape.Sk)}
	keep := []vk.Resource{o.p}
	if backward {
		push.addrD = o.d.Address()
		keep = append(keep, o.d)
	}
	if o.cfg.Causal != problem.CausalNone {
		push.causal = 1
	}
	if o.cfg.Causal == problem.BottomRight {
		push.causalOffset = int32(o.shape.Sk - o.shape.Sq)
	}
	x := min(rows, o.dev.Caps().Limits.MaxWorkGroupCount[0])
	return s.Dispatch(pipeline, nil, dispatch.ParamBytes(&push, 40), [3]uint32{x, (rows + x - 1) / x, 1}, keep...)
}

// variant is the key of an Op's pipelines.
type variant struct {
	softmax, backward bool
	transA, transB    bool
	dtype             problem.DType
}

// Pipeline describes the kernel to the host layer.
func (v variant) Pipeline(t *tile) (*vk.PipelineDesc, error) {
	name, local, constants := "plain_softmax", uint32(softmaxLocal), map[uint32]uint32{
		shaders.ConstLocalSize: softmaxLocal, shaders.ConstDtype: uint32(v.dtype), shaders.ConstPlainBackward: dispatch.BoolConstant(v.backward)}
	if !v.softmax {
		name, local, constants = t.module, t.local(), t.constants()
		constants[shaders.ConstPlainTransA] = dispatch.BoolConstant(v.transA)
		constants[shaders.ConstPlainTransB] = dispatch.BoolConstant(v.transB)
	}
	module, err := shaders.Get(dispatch.ModuleName(name, problem.AccessAddresses))
	if err != nil {
		return nil, err
	}
	desc, err := dispatch.DescribeKernel(module, local, constants)
	if err != nil {
		return nil, err
	}
	if !v.softmax && t.subgroup > 0 {
		desc.SubgroupSize, desc.FullSubgroups = t.subgroup, true
	}
	desc.Name = fmt.Sprintf("%s %v %dx%dx%d", module.Name, v.dtype, t.m, t.n, t.k)
	return desc, nil
}

func unsupported(format string, args ...any) error {
	return fmt.Errorf("%w: %s", problem.ErrUnsupported, fmt.Sprintf(format, args...))
}

func first(steps ...func() error) error {
	for _, f := range steps {
		if err := f(); err != nil {
			return err
		}
	}
	return nil
}

// stride is the distance of two rows of scores in elements: rows are 16-byte aligned.
func stride(keys int) int { return (keys + 7) &^ 7 }

// Bytes is the memory of the scores of a shape: S, which becomes P, and for a backward pass
// dP, which becomes dS. It saturates.
func Bytes(cfg problem.Config, s problem.Shape, backward bool) uint64 {
	matrices := 1
	if backward {
		matrices = 2
	}
	return hostmem.Product(s.B, s.Hq, s.Sq, stride(s.Sk), cfg.DType.Size(), matrices)
}

// Check returns an error that matches problem.ErrUnsupported and names what plain attention
// does not compute.
func Check(cfg problem.Config, s problem.Shape) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	if err := s.Validate(); err != nil {
		return err
	}
	plainOf := problem.Config{DType: cfg.DType, HeadDim: cfg.HeadDim, HeadDimV: cfg.HeadDimV, Causal: cfg.Causal, Scale: cfg.Scale,
		Tier: cfg.Tier, Access: cfg.Access, Tuning: cfg.Tuning, Kernel: cfg.Kernel}
	switch {
	case cfg != plainOf:
		return unsupported("plain attention takes the causal mask and no other option")
	case max(cfg.HeadDim, cfg.ValueDim()) > problem.MaxHeadDim:
		return unsupported("plain attention takes head dims up to %d", problem.MaxHeadDim)
	case cfg.DType != problem.F32 && (cfg.HeadDim%8 != 0 || cfg.ValueDim()%8 != 0):
		return unsupported("plain attention in %v takes head dims that are multiples of 8", cfg.DType)
	case s.Hq > 1 && hostmem.Product(s.Sq, stride(s.Sk)) > math.MaxUint32, s.Rows() > math.MaxInt32:
		return unsupported("plain attention of several heads takes less than 2^32 scores of a head, and 2^31 rows")
	}
	return nil
}

// matrix is a matrix for each head of each batch, in a buffer.
type matrix struct {
	buffer    *vk.Buffer
	addr      uint64
	batch     uint64 // strides in elements
	head, row uint32
}

func (o *Op) scores(b *vk.Buffer) matrix {
	row := stride(o.shape.Sk)
	head := uint64(o.shape.Sq) * uint64(row) // of one head alone it may have 33 bits; nothing steps by it
	return matrix{b, b.Address(), head * uint64(o.shape.Hq), uint32(head), uint32(row)}
}

// tensor checks a tensor of a call. Package attention has checked its extent.
func (o *Op) tensor(t problem.Tensor, heads, rows, dim int) (matrix, error) {
	if t.Buffer == nil || t.Buffer.Address() == 0 {
		return matrix{}, unsupported("plain attention needs all tensors in buffers with device addresses")
	}
	s := t.Strides.Resolve(heads, rows, dim)
	if uint64(s.Head) > math.MaxUint32 || uint64(s.Seq) > math.MaxUint32 {
		return matrix{}, unsupported("plain attention takes strides of heads and rows below 2^32")
	}
	if o.cfg.DType != problem.F32 && (s.Head|s.Seq|s.Batch|t.Offset)%8 != 0 {
		return matrix{}, unsupported("plain attention in %v takes tensors whose rows are 16-byte aligned", o.cfg.DType)
	}
	size := uint64(o.cfg.DType.Size())
	extent := uint64(t.Offset) + uint64(o.shape.B-1)*uint64(s.Batch) + uint64(heads-1)*uint64(s.Head) + uint64(rows-1)*uint64(s.Seq) + uint64(dim)
	if t.Offset < 0 || s.Batch < 0 || s.Head < 0 || s.Seq < 0 || extent*size > t.Buffer.Size() {
		return matrix{}, &problem.ShapeError{Field: "Tensor", Got: extent * size, Want: "a tensor inside its buffer"}
	}
	return matrix{t.Buffer, t.Buffer.Address() + uint64(t.Offset)*size, uint64(s.Batch), uint32(s.Head), uint32(s.Seq)}, nil
}

func (o *Op) tensors(a *problem.Args) (q, k, v, out matrix, err error) {
	if a.Shape != o.shape {
		return q, k, v, out, unsupported("plain attention was made for %v", o.shape)
	}
	if a.Varlen != nil || a.Pages != nil || a.SparseTokens != nil || a.Blocks != nil || a.Bias != nil || a.Mask != nil || a.ALiBi.Given() || a.Sinks.Given() {
		return q, k, v, out, unsupported("plain attention takes the causal mask and no other option")
	}
	hkv, dim, dimV := o.shape.KVHeads(), o.cfg.HeadDim, o.cfg.ValueDim()
	if q, err = o.tensor(a.Q, o.shape.Hq, o.shape.Sq, dim); err != nil {
		return
	}
	if k, err = o.tensor(a.K, hkv, o.shape.Sk, dim); err != nil {
		return
	}
	if v, err = o.tensor(a.V, hkv, o.shape.Sk, dimV); err != nil {
		return
	}
	out, err = o.tensor(a.O, o.shape.Hq, o.shape.Sq, dimV)
	return
}
