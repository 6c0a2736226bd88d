package tensors

import (
	"vkattn/internal/problem"
	"vkattn/vk"
)

// Form is all of a checked call without options except its buffers. Calls of one form have the same sizes, strides
// and offsets, so most checks of the first hold for all: the layers of a model make such calls. The zero value is the
// form of no call.
type Form struct {
	shape   problem.Shape
	tensors [5]formTensor // Q, K, V, O and LSE
	n       int           // 4 without LSE
}

type formTensor struct {
	offset      int64
	strides     problem.Strides
	start, span uint64 // bytes, from the start of the buffer on
	dtype       problem.DType
	sizes       [4]int
	lowBits     uint64 // of the buffer's address: plans depend on alignments, of at most eight float32
}

const formAlign = 64

func tensorsOf(a *problem.Args) [5]*problem.Tensor {
	return [5]*problem.Tensor{&a.Q, &a.K, &a.V, &a.O, &a.LSE}
}

// Set is the form of a call that Check accepts, without options and with all tensors in buffers.
func (f *Form) Set(a *problem.Args, all []Layout) {
	f.shape, f.n = a.Shape, len(all)
	given := tensorsOf(a)
	for i := range all {
		l := &all[i]
		f.tensors[i] = formTensor{
			offset: given[i].Offset, strides: given[i].Strides, dtype: l.DType, lowBits: given[i].Buffer.Address() % formAlign,
			start: uint64(l.Tensor.Offset * l.Size), span: l.SpanBytes(),
			sizes: [4]int{int(l.Counts[0]), int(l.Counts[1]), int(l.Counts[2]), int(l.Dim)},
		}
	}
}

// Accepts reports whether a call has the form, and buffers with addresses that Check and CheckDevice accept. It does
// not say what is wrong, and false is no refusal: Accepts takes no tensors whose memory interleaves.
func (f *Form) Accepts(a *problem.Args, cfg *problem.Config, dev *vk.Device) bool {
	if f.n == 0 || a.Shape != f.shape || HasLSE(a) != (f.n == 5) || HasOptions(a, cfg) || a.BlockMap != nil {
		return false
	}
	given := tensorsOf(a)
	for i := range f.n {
		if !f.tensors[i].accepts(given[i], dev) {
			return false
		}
	}
	for i := FirstOutput; i < f.n; i++ {
		for j := range i {
			if !f.disjoint(i, j, given[i].Buffer, given[j].Buffer) {
				return false
			}
		}
	}
	return true
}

func (f *formTensor) accepts(t *problem.Tensor, dev *vk.Device) bool {
	b := t.Buffer
	if t.Offset != f.offset || t.Strides != f.strides || b == nil || t.Host != nil || t.Memory != nil {
		return false
	}
	if b.Device() != dev || b.Closed() || b.Size() < f.start+f.span || b.Address() == 0 ||
		b.Address()%formAlign != f.lowBits {
		return false
	}
	made := t.Sizes()
	if made == nil {
		return true
	}
	dtype, _ := t.DType()
	return dtype == f.dtype && (len(made) != 4 || [4]int(made) == f.sizes)
}

// disjoint reports whether tensors i and j share no memory.
func (f *Form) disjoint(i, j int, bi, bj *vk.Buffer) bool {
	if bi.Handle() != bj.Handle() {
		return true
	}
	x, y := bi.Offset()+f.tensors[i].start, bj.Offset()+f.tensors[j].start
	return x+f.tensors[i].span <= y || y+f.tensors[j].span <= x
}

// Bind gives the addresses of the tensors and their buffers, of a call that Accepts takes. It returns their number.
func (f *Form) Bind(a *problem.Args, addresses *[5]uint64, held []vk.Resource) int {
	given := tensorsOf(a)
	for i, t := range given[:f.n] {
		addresses[i], held[i] = t.Buffer.Address()+f.tensors[i].start, t.Buffer
	}
	return f.n
}

// Order is Uses.Order of such a call.
func (f *Form) Order(c *vk.Commands, a *problem.Args) error {
	var uses [5]vk.BufferRange
	given := tensorsOf(a)
	for i, t := range given[:f.n] {
		uses[i] = vk.BufferRange{Buffer: t.Buffer, Offset: f.tensors[i].start, Size: f.tensors[i].span}
	}
	return c.Order(uses[:FirstOutput], uses[FirstOutput:f.n])
}

// Uses is the memory that a call reads and writes, for vk.Commands.Order. It holds what the largest call has, so that a
// call keeps it on its stack.
type Uses struct {
	reads  [BackwardCount + int(OptionTensors)]vk.BufferRange
	writes [BackwardCount]vk.BufferRange
	nr, nw int
}

// Read adds a tensor that the call reads.
func (u *Uses) Read(t *Layout) { u.nr += t.use(&u.reads[u.nr]) }

// Write adds a tensor that the call writes.
func (u *Uses) Write(t *Layout) { u.nw += t.use(&u.writes[u.nw]) }

// Options adds the memory of the options of a call, which has been checked.
func (u *Uses) Options(cfg *problem.Config, a *problem.Args) {
	if !HasOptions(a, cfg) {
		return
	}
	var t Layout
	_ = EachOption(cfg, a, &t, func(which OptionTensor) error {
		if which == MaxLogits {
			u.Write(&t)
		} else {
			u.Read(&t)
		}
		return nil
	})
}

// Order orders the commands recorded next by what was added.
func (u *Uses) Order(c *vk.Commands) error { return c.Order(u.reads[:u.nr], u.writes[:u.nw]) }

// use sets r to the memory of the tensor and returns 1, or 0 if it has none.
func (l *Layout) use(r *vk.BufferRange) int {
	size := l.SpanBytes()
	if size == 0 || l.Tensor.Buffer == nil {
		return 0
	}
	*r = vk.BufferRange{Buffer: l.Tensor.Buffer, Offset: uint64(l.Tensor.Offset * l.Size), Size: size}
	return 1
}
