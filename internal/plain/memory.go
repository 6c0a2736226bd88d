package plain

import (
	"math"

	"vkattn/internal/hostmem"
	"vkattn/internal/problem"
	"vkattn/vk"
)

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
