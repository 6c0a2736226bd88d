package bench

import "vkattn/attention"

// prefillLengths are the lengths of the prefill of different sequences.
const prefillLengths = "1024/1024,468/468,631/631,258/258,353/353,599/599,732/732,94/94"

// serving has the shapes of a published table of results of Triton kernels. Lengths and
// heads that the table does not tell are chosen here.
func serving() []Problem {
	prefill := Problem{Shape: attention.Shape{B: 8, Hq: 64, Hkv: 16, Sq: 1024, Sk: 1024},
		Config: attention.Config{HeadDim: 64, HeadDimV: 64, Causal: attention.TopLeft}, Line: "prefill"}
	padded, packed := prefill, prefill
	padded.Line, padded.Lengths = "prefill, lengths, padded", prefillLengths
	packed.Line, packed.Lengths, packed.Packed = "prefill, lengths, packed", prefillLengths, true
	return []Problem{
		prefill, padded, packed,
		{Shape: attention.Shape{B: 8, Hq: 64, Hkv: 16, Sq: 1, Sk: 1024},
			Config: attention.Config{HeadDim: 64, HeadDimV: 64}, Line: "decode"},
		{Shape: attention.Shape{B: 3, Hq: 4, Hkv: 4, Sq: 1, Sk: 1624},
			Config: attention.Config{HeadDim: 64, HeadDimV: 64}, Line: "decode, lengths, paged",
			Options: Options{Lengths: "1/1000,1/357,1/1624", PageSize: 16}},
		{Shape: attention.Shape{B: 3, Hq: 32, Hkv: 8, Sq: 1, Sk: 32000},
			Config: attention.Config{HeadDim: 256, HeadDimV: 256}, Line: "sparse decode, lengths, paged",
			Options: Options{Lengths: "1/32000,1/17389,1/4096", PageSize: 16, SparseRatio: 0.02}},
		{Shape: attention.Shape{B: 4, Hq: 32, Hkv: 8, Sq: 1, Sk: 32000},
			Config: attention.Config{HeadDim: 256, HeadDimV: 256}, Line: "sparse decode",
			Options: Options{SparseRatio: 0.02}},
	}
}

// decode has one row for each sequence over long K and V: contiguous, paged, quantized,
// sparse, and in batches of different lengths.
func decode() (list []Problem) {
	of := func(b, hq, hkv, sk, d int) Problem {
		return Problem{Shape: attention.Shape{B: b, Hq: hq, Hkv: hkv, Sq: 1, Sk: sk},
			Config: attention.Config{HeadDim: d, HeadDimV: d}, Line: "contiguous"}
	}
	paged := func(p Problem, size int, line string) Problem {
		p.PageSize, p.Line = size, line
		return p
	}
	shapes := []Problem{of(8, 32, 8, 8192, 128), of(1, 32, 8, 32768, 128), of(8, 64, 8, 8192, 64),
		of(8, 32, 32, 8192, 128), of(64, 32, 8, 4096, 128)}
	for i, p := range shapes {
		list = append(list, p, paged(p, 16, "paged"), paged(p, 64, "paged"), paged(p, 256, "paged"), paged(p, 1, "paged"))
		types := []attention.KVType{attention.KVInt8, attention.KVFP8}
		switch {
		case i == 0:
			types = append(types, attention.KVQ8_0, attention.KVQ4_0)
		case i > 1:
			types = nil
		}
		for _, kv := range types {
			q := p
			q.Config.KV, q.Line = kv, kv.String()
			list = append(list, q)
		}
		if i == 0 {
			s := p
			s.Options.SparseRatio, s.Line = 0.02, "sparse"
			list = append(list, s, paged(s, 16, "sparse, paged"))
		}
	}
	long := of(4, 32, 8, 32000, 256)
	sparse := long
	sparse.Options.SparseRatio, sparse.Line = 0.02, "sparse"
	list = append(list, long, sparse, paged(sparse, 16, "sparse, paged"))
	// Latent attention, 128 heads over 8 devices.
	latent := of(32, 16, 1, 8192, 576)
	latent.Config.HeadDimV, latent.SharedKV, latent.Line = 512, true, "latent"
	list = append(list, latent, paged(latent, 64, "latent, paged"))
	for _, mix := range []struct {
		lengths Lengths
		packed  bool
		causal  attention.Causal
		line    string
	}{
		{"1/1,1/235,1/13353", false, attention.CausalNone, "lengths"},
		{"600*1/1024,5*2048/2048", true, attention.BottomRight, "600 decodes, 5 prefills"},
	} {
		p := of(1, 32, 8, 1, 128)
		p.Lengths, p.Packed, p.Config.Causal, p.Line = mix.lengths, mix.packed, mix.causal, mix.line
		mix.lengths.bound(&p.Shape)
		list = append(list, p, paged(p, 16, mix.line+", paged"))
	}
	return list
}
