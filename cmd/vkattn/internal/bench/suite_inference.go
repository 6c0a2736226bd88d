package bench

// serving has the shapes of a published table of results of Triton kernels. Lengths and
// heads that the table does not tell are chosen here.
func serving() (list []Problem) {
	const prefill = "nheads=64 nheads-kv=16 headdim=64 causal=top-left "
	const lengths = prefill + "varlen=1024/1024,468/468,631/631,258/258,353/353,599/599,732/732,94/94 "
	const sparse = "nheads=32 nheads-kv=8 headdim=256 sparse-ratio=0.02 "
	for _, x := range [][2]string{
		{"prefill", prefill + "batch-size=8 seqlen=1024"},
		{"prefill, lengths, padded", lengths + "padded=true"},
		{"prefill, lengths, packed", lengths},
		{"decode", "batch-size=8 nheads=64 nheads-kv=16 seqlen=1 seqlen-k=1024 headdim=64"},
		{"decode, lengths, paged", "nheads=4 headdim=64 varlen=1/1000,1/357,1/1624 padded=true page-size=16"},
		{"sparse decode, lengths, paged", sparse + "varlen=1/32000,1/17389,1/4096 padded=true page-size=16"},
		{"sparse decode", sparse + "batch-size=4 seqlen=1 seqlen-k=32000"},
	} {
		list = append(list, named(x[0], x[1])...)
	}
	return list
}

// decode has one row for each sequence over long K and V: contiguous, paged, quantized,
// sparse, and in batches of different lengths.
func decode() (list []Problem) {
	add := func(line, text string) { list = append(list, named(line, text)...) }
	quantized := map[int][]string{0: {"int8", "fp8", "q8_0", "q4_0"}, 1: {"int8", "fp8"}}
	for i, shape := range []string{
		"batch-size=8 nheads=32 nheads-kv=8 seqlen=1 seqlen-k=8192 headdim=128",
		"batch-size=1 nheads=32 nheads-kv=8 seqlen=1 seqlen-k=32768 headdim=128",
		"batch-size=8 nheads=64 nheads-kv=8 seqlen=1 seqlen-k=8192 headdim=64",
		"batch-size=8 nheads=32 seqlen=1 seqlen-k=8192 headdim=128",
		"batch-size=64 nheads=32 nheads-kv=8 seqlen=1 seqlen-k=4096 headdim=128",
	} {
		add("contiguous", shape)
		add("paged", shape+" page-size=16,64,256,1")
		for _, kv := range quantized[i] {
			add(kv, shape+" kv-dtype="+kv)
		}
		if i == 0 {
			add("sparse", shape+" sparse-ratio=0.02")
			add("sparse, paged", shape+" sparse-ratio=0.02 page-size=16")
		}
	}
	const long = "batch-size=4 nheads=32 nheads-kv=8 seqlen=1 seqlen-k=32000 headdim=256"
	add("contiguous", long)
	add("sparse", long+" sparse-ratio=0.02")
	add("sparse, paged", long+" sparse-ratio=0.02 page-size=16")
	// Latent attention, 128 heads over 8 devices.
	const latent = "batch-size=32 nheads=16 nheads-kv=1 seqlen=1 seqlen-k=8192 headdim=576 headdim-v=512 shared-kv=true"
	add("latent", latent)
	add("latent, paged", latent+" page-size=64")
	const mixed = "nheads=32 nheads-kv=8 headdim=128 "
	for _, x := range [][2]string{
		{"lengths", mixed + "varlen=1/1,1/235,1/13353 padded=true"},
		{"600 decodes, 5 prefills", mixed + "varlen=600*1/1024,5*2048/2048 causal=bottom-right"},
	} {
		add(x[0], x[1])
		add(x[0]+", paged", x[1]+" page-size=16")
	}
	return list
}
