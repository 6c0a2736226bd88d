package bench

// Lines of the suites ladder and training that stand in tables of their own.
const (
	lineLadder = "ladder"
	lineSpeed  = "speed"
	lineAlone  = "attention"
	lineFlash  = "flash attention"
)

// named are the problems of the texts of sweeps, with a line.
func named(line string, sweeps ...string) (out []Problem) {
	for _, text := range sweeps {
		list, err := Lists(text).Problems()
		if err != nil {
			panic(err) // a table of this program has too many problems
		}
		for _, p := range list {
			p.Line = line
			out = append(out, p)
		}
	}
	return out
}

// models is the attention of one layer of the transformers of 768, 1024 and 1280 channels.
func models() (list []Problem) {
	const of = " batch-size=4 seqlen=1024 headdim=64 causal=top-left dtype=bf16"
	list = append(list, named("small", "layers=12 nheads=12"+of)...)
	list = append(list, named("medium", "layers=24 nheads=16"+of)...)
	return append(list, named("large", "layers=36 nheads=20"+of)...)
}

// ladder has a problem that each step of the kernel's development runs, and the problems of
// the forward suite.
func ladder() []Problem {
	list := named(lineLadder, "batch-size=8 nheads=8 seqlen=1024 headdim=128 causal=none,top-left")
	for i := range list {
		list[i].Ladder = true
	}
	return append(list, named(lineSpeed, "batch-size=16 nheads=8 seqlen=1024-16384*2 headdim=128,64 "+
		"causal=none,top-left")...)
}

// training has one layer of each transformer, attention alone, and one causal head.
func training() []Problem {
	list := append(models(), named(lineAlone, "batch-size=8 nheads=1 seqlen=256,1024-4096*4,8192,16384 "+
		"headdim=16-128*2 causal=none dtype=f32")...)
	return append(list, named(lineFlash, "batch-size=1 nheads=1 seqlen=128-32768*2 headdim=16-64*2 causal=top-left "+
		"dtype=bf16,f32")...)
}

// gqaGrid has squares and a rectangle of equal work, with and without grouped heads.
func gqaGrid() []Problem {
	const of = " nheads=32 nheads-kv=32,8 headdim=128 causal=none,bottom-right"
	return named("", "batch-size=16 seqlen=1024"+of, "batch-size=4 seqlen=1024 seqlen-k=4096"+of,
		"batch-size=1 seqlen=4096"+of)
}

// presetSuite has the forward passes of some presets, and a small default.
func presetSuite() []Problem {
	list := named("default", "batch-size=2 nheads=8 seqlen=1024 headdim=64")
	for _, name := range []string{"gpt2-small", "gpt3", "bert-base", "bert-large", "short", "long", "xlong"} {
		for _, text := range presetOf(name).problems {
			list = append(list, named(name, text)...)
		}
	}
	return list
}
