package ranks

import (
	"errors"

	"vkattn/attention"
	"vkattn/attention/parallel"
	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/internal/operands"
	"vkattn/vk"
)

// tensors are those of a call: of one rank, or of the whole problem.
type tensors struct {
	Q, K, V, O, LSE attention.Tensor
	DO, DQ, DK, DV  attention.Tensor // of a backward pass
	memory          *operands.Memory
	blocks          [tensorCount]*operands.Block // nil: not given
}

// Indices of the tensors, in the order of all.
const (
	tensorQ = iota
	tensorK
	tensorV
	tensorO
	tensorLSE
	tensorDO
	tensorDQ
	tensorDK
	tensorDV
	tensorCount
)

// sizes are the bytes of the tensors for some rows and keys.
func sizes(cfg *attention.Config, p *parallel.Problem, pass bench.Pass, rows, keys int) (n [tensorCount]int64) {
	size := int64(cfg.DType.Size())
	q, k := int64(p.B)*int64(p.Hq)*int64(rows), int64(p.B)*int64(p.KVHeads())*int64(keys)
	d, dv := int64(cfg.HeadDim)*size, int64(cfg.ValueDim())*size
	n = [tensorCount]int64{tensorQ: q * d, tensorK: k * d, tensorV: k * dv, tensorO: q * dv, tensorLSE: q * 4}
	if pass != bench.PassForward {
		n[tensorDO], n[tensorDQ], n[tensorDK], n[tensorDV] = q*dv, q*d, k*d, k*dv
	}
	return n
}

// buffers are those of the tensors of a mode. Decode moves none of them, and memory that other
// processes or CUDA may use is slower.
func (s *Session) buffers(m Mode) vk.BufferOptions {
	if m.Decode {
		return vk.BufferOptions{}
	}
	return s.Meter.Buffers()
}

// ownBuffers are those of a call on one device by a tier. Only CUDA needs exportable ones.
func ownBuffers(tier attention.Tier) vk.BufferOptions {
	return vk.BufferOptions{Exportable: tier == attention.TierCUDA}
}

// allocate makes tensors where the session computes, on a device in buffers as o says. A tensor
// without elements is not given.
func (s *Session) allocate(n [tensorCount]int64, o vk.BufferOptions) (*tensors, error) {
	t := &tensors{memory: operands.MemoryOf(s.Device, s.stream)}
	for i, x := range t.all() {
		if n[i] == 0 {
			continue
		}
		b, err := t.memory.New(uint64(n[i]), o)
		if err != nil {
			return nil, errors.Join(err, t.memory.Free())
		}
		t.blocks[i], x.Host, x.Buffer = b, b.Host, b.Buffer
	}
	return t, nil
}

func (t *tensors) all() [tensorCount]*attention.Tensor {
	return [tensorCount]*attention.Tensor{&t.Q, &t.K, &t.V, &t.O, &t.LSE, &t.DO, &t.DQ, &t.DK, &t.DV}
}

// backward are the arguments of a backward call, with the arguments of its forward call.
func (t *tensors) backward(a attention.Args) attention.BackwardArgs {
	return attention.BackwardArgs{Args: a, DO: t.DO, DQ: t.DQ, DK: t.DK, DV: t.DV}
}

// write fills a tensor.
func (t *tensors) write(tensor int, data []byte) error {
	if t.blocks[tensor] == nil || len(data) == 0 {
		return nil
	}
	return t.blocks[tensor].Write(0, data)
}

// fill repeats data over a tensor.
func (t *tensors) fill(tensor int, data []byte) error {
	b := t.blocks[tensor]
	if b == nil {
		return nil
	}
	for at := uint64(0); at < b.Size(); at += uint64(len(data)) {
		if err := b.Write(at, data[:min(uint64(len(data)), b.Size()-at)]); err != nil {
			return err
		}
	}
	return nil
}

// cut copies rows of spans out of a whole tensor [batch x heads, rows, bytes]; paste copies them
// back.
func cut(whole []byte, spans []parallel.Span, heads, rows, bytes int) []byte {
	var part []byte
	eachSpan(spans, heads, rows, bytes, func(at, n int) { part = append(part, whole[at:at+n]...) })
	return part
}

func paste(whole, part []byte, spans []parallel.Span, heads, rows, bytes int) {
	eachSpan(spans, heads, rows, bytes, func(at, n int) {
		copy(whole[at:at+n], part)
		part = part[n:]
	})
}

// eachSpan visits the byte ranges of spans in a tensor, in the order of a rank's own tensor.
func eachSpan(spans []parallel.Span, heads, rows, bytes int, visit func(at, n int)) {
	for h := range heads {
		for _, s := range spans {
			visit((h*rows+s.First)*bytes, s.N*bytes)
		}
	}
}
