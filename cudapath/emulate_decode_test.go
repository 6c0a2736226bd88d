//go:build !windows

package cudapath

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/cases"
	"vkattn/internal/plan"
	"vkattn/internal/problem"
	"vkattn/internal/tensors"
	"vkattn/internal/testlevel"
)

// decodeEmulator runs the decode kernels of a module on the CPU.
type decodeEmulator struct {
	lib uintptr
	run func(entry uintptr, p *decodeParams, grid *uint32, threads, reversed int32) string
}

// newDecodeEmulator compiles the kernels of a storage type and a head dim, with the tiles of a list of the table. change may alter the text
// of their sources.
func newDecodeEmulator(t testing.TB, list []Kernel, dtype string, d int, change func(dir string)) *decodeEmulator {
	t.Helper()
	flags := []string{"-DDECODE_NAME=attn", fmt.Sprintf("-DDECODE_D=%d", d), fmt.Sprintf("-DDECODE_BF16=%t", dtype == "bf16"),
		"-DPARAMS=DecodeParams", "-DDECODE_MOST_SHARED=232448"}
	for i := range list {
		if k := &list[i]; k.DType == dtype && k.D == d {
			kv := strings.ToUpper(k.KV)
			for name, value := range map[string]int{"WARPS": k.Threads / 32, "STAGES": k.Stages, "KEYS": k.Cols, "BLOCKS": k.Blocks, "SHARED": k.Shared} {
				flags = append(flags, fmt.Sprintf("-DDECODE_%s_%s=%d", kv, name, value))
			}
		}
	}
	slices.Sort(flags)
	e := &decodeEmulator{lib: emulation{kernel: "decode.cu", folder: "warp", change: change}.load(t, flags...)}
	purego.RegisterLibFunc(&e.run, e.lib, "emulate")
	return e
}

// forward computes a call in host memory. narrow takes copies of four bytes where those of 16 would do.
func (e *decodeEmulator) forward(k *Kernel, cfg problem.Config, a problem.Args, splits int, narrow, reversed bool) error {
	var l tensors.Layouts
	if err := l.Check(&cfg, &a); err != nil {
		return err
	}
	return e.forwardUnchecked(k, cfg, a, l.All(), splits, narrow && k.KV != problem.KVSame.String(), reversed)
}

// forwardUnchecked is forward with the layouts of the tensors.
func (e *decodeEmulator) forwardUnchecked(k *Kernel, cfg problem.Config, a problem.Args, all []tensors.Layout, splits int, narrow, reversed bool) error {
	factors := plan.FactorsOf(cfg)
	var call problem.CUDACall
	plan.SetCUDACall(&call, &cfg, &factors, &a, all)
	if call.Decode.Splits = splits; k.KV == problem.KVSame.String() {
		call.Decode.UnitBytes = 2
	}
	var p decodeParams
	p.set(&call)
	for i, t := range [...]*tensorParams{&p.q, &p.k, &p.v, &p.o} {
		t.base = hostAddress([...][]byte{a.Q.Host, a.K.Host, a.V.Host, a.O.Host}[i], all[i].Tensor.Offset, int(all[i].Size))
		if least := [...]uint64{2, 4, 4, 8}[i]; t.base%least != 0 {
			return fmt.Errorf("tensor %d at %#x", i, t.base)
		}
	}
	vector := func(v problem.Vector) uint64 { return hostAddress(v.Host, v.Offset, 4) }
	p.kScale, p.vScale = vector(a.KScale), vector(a.VScale)
	if a.LSE.Given() {
		p.lse = hostAddress(a.LSE.Host, a.LSE.Offset, 4)
	}
	if v := a.Varlen; v != nil {
		p.cuQ, p.cuK, p.usedQ, p.usedK = vector(v.CuQ), vector(v.CuK), vector(v.UsedQ), vector(v.UsedK)
		call.CuQ = problem.CUDAVector{}
	}
	if a.Pages != nil {
		p.table = vector(a.Pages.Table)
	}
	p.alibi, p.sinks = vector(a.ALiBi), vector(a.Sinks)
	if p.setWide(&call); narrow {
		p.wideK, p.wideV = 0, 0
	}
	if p.cuQ != 0 { // for the grid: the vector has no buffer here
		call.Sq, call.B = call.TotalQ, 1
	}
	grid, tiles := decodeGrid(&call)
	counters, states := decodeScratch(&call, k.D)
	zeros := make([]uint32, counters/4)
	p.counters = hostAddress(unsafe.Slice((*byte)(unsafe.Pointer(&zeros[0])), len(zeros)*4), 0, 1)
	var check func() error
	p.partial, check = guardedWorkspace(states)
	function, err := purego.Dlsym(e.lib, "attn_"+k.KV)
	if err != nil {
		return err
	}
	order := int32(0)
	if reversed {
		order = 1
	}
	g := [3]uint32{uint32(grid[0]), uint32(grid[1]), uint32(grid[2])}
	emulators.Lock()
	failure := e.run(function, &p, &g[0], int32(k.Threads), order)
	emulators.Unlock()
	runtime.KeepAlive(a)
	if failure != "" {
		return errors.New(failure)
	}
	for i, n := range zeros {
		if n != 0 {
			return fmt.Errorf("the counter of row tile %d of %d is left at %d", i, tiles, n)
		}
	}
	return check()
}

// conformDecode computes a case with a number of splits. What must not matter, the order of threads and how wide copies are
// change no bit.
func conformDecode(e *decodeEmulator, k *Kernel, p *cases.Problem, splits int) error {
	cfg := p.Config(cases.On(attention.TierCPU, p.DType))
	var afters [2][][]byte
	for i, before := range [2][][]byte{p.Image, p.Spoiled()} {
		for _, image := range before {
			afters[i] = append(afters[i], bytes.Clone(image))
		}
		if err := e.forward(k, cfg, p.HostArgs(afters[i]), splits, i == 1, i == 1); err != nil {
			return err
		}
		if err := p.Trespass(before, afters[i]); err != nil {
			return fmt.Errorf("run %d: %w", i+1, err)
		}
	}
	formula := cases.NewFormula(p)
	formula.Rounded = p.KeyType.Scaled() // the exponent of V's scale is added to the score
	judged := formula.Judge(afters[0])
	if err := judged.Err(); err != nil {
		return err
	}
	return p.Same(afters[0], afters[1])
}

// decodeCases are cases of few rows, for a head dim and a type of K and V.
func decodeCases(d int, kv attention.KVType) (list []cases.Case) {
	seqs := func(rows int, keys ...int) (list []cases.Seq) {
		for i, n := range keys {
			list = append(list, cases.Seq{ID: i + 1, Rows: rows, Keys: n})
		}
		return list
	}
	add := func(name string, hq, hkv int, c cases.Case) {
		c.Name, c.D, c.Dv, c.KeyType, c.LSE = name, d, d, kv, true
		c.Shape.Hq, c.Shape.Hkv = hq, hkv
		list = append(list, c)
	}
	add("one-row", 8, 2, cases.Case{Seqs: seqs(1, 300, 300)})
	add("lengths", 4, 1, cases.Case{Seqs: seqs(1, 1, 15, 16, 17, 0, 250), LooseK: true, Causal: attention.BottomRight})
	add("rows", 20, 2, cases.Case{Seqs: seqs(3, 70, 2, 131), LooseK: true, Causal: attention.BottomRight}) // groups of 10
	add("top-left", 2, 2, cases.Case{Seqs: seqs(4, 40), Causal: attention.TopLeft})
	add("pages", 8, 4, cases.Case{Seqs: seqs(2, 200, 33, 90), PageSize: 16, LooseK: true, PackedQ: true, Causal: attention.BottomRight})
	add("large-pages", 4, 4, cases.Case{Seqs: seqs(1, 200, 64), PageSize: 64, Prefix: 30})
	add("packed", 6, 2, cases.Case{Seqs: append(seqs(2, 100, 41), cases.Seq{ID: 9, Rows: 0, Keys: 20}, cases.Seq{ID: 10, Rows: 1, Keys: 77}),
		PackedQ: true, PackedK: true, LooseQ: true, Causal: attention.BottomRight})
	if kv.Scaled() {
		add("strides", 4, 2, cases.Case{Seqs: seqs(1, 90, 90), Layout: cases.BSHD})
		add("scale16", 4, 2, cases.Case{Seqs: seqs(1, 123, 90), LooseK: true, KVBlock: 16})
		for draw := range 4 {
			c := cases.RandomExtreme(5, draw, kv, attention.F16)
			nan := cases.ScaleNaN
			add(fmt.Sprint("extreme-", draw), 4, 2, cases.Case{Seqs: seqs(2, 60, 33), LooseK: true, Causal: attention.BottomRight,
				Extremes: cases.Extremes{KScales: c.Extremes.KScales, VScales: append(c.Extremes.VScales, 0x1p-60, 0x1p-20), NonFinite: draw == 1}})
			if draw == 3 {
				list[len(list)-1].Extremes.VScales = []float32{nan, 1, 2, 3}
			}
		}
	}
	return list
}

// The decode kernels, run by the CPU, compute their cases.
func TestDecodeKernelsOnTheCPU(t *testing.T) {
	testlevel.HostOnly(t)
	table, err := embedded()
	require.NoError(t, err)
	n := 0
	for i, dtype := range []attention.DType{attention.F16, attention.BF16} {
		for j, d := range []int{128, 64, 256} {
			if level := testlevel.Get(); level != testlevel.All && level != testlevel.Exhaustive && i != j {
				continue // f16 at 128 and bf16 at 64
			}
			e := newDecodeEmulator(t, table.decodes, dtype.String(), d, nil)
			for _, kv := range decodeTypes {
				k, why := decodeKernel(table.decodes, "sm_90a", dtype.String(), kv.String(), d, d)
				require.Empty(t, why)
				for _, c := range decodeCases(d, kv) {
					n++
					t.Run(fmt.Sprintf("%v/%v", dtype, c), func(t *testing.T) {
						p, err := cases.NewProblem(c, dtype)
						require.NoError(t, err)
						require.NoError(t, conformDecode(e, k, p, 1+n%4))
					})
				}
			}
		}
	}
	t.Logf("%d cases", n)
}

// Rows of K and V at any multiples of four bytes give the bits of adjacent ones. Lengths, positions and pages that are wrong
// write nothing outside of O and LSE.
func TestDecodeKernelsOfOtherMemoryOnTheCPU(t *testing.T) {
	testlevel.HostOnly(t)
	table, err := embedded()
	require.NoError(t, err)
	const d, dtype = 64, attention.F16
	e := newDecodeEmulator(t, table.decodes, dtype.String(), d, nil)
	for _, kv := range decodeTypes {
		k, why := decodeKernel(table.decodes, "sm_90a", dtype.String(), kv.String(), d, d)
		require.Empty(t, why)
		c := cases.Case{Name: "other-memory", D: d, Dv: d, KeyType: kv, Shape: attention.Shape{Hq: 6, Hkv: 3}, Seed: 1,
			Seqs: []cases.Seq{{ID: 1, Rows: 1, Keys: 50}, {ID: 2, Rows: 1, Keys: 50}}}
		p, err := cases.NewProblem(c, dtype)
		require.NoError(t, err)
		cfg := p.Config(cases.On(attention.TierCPU, dtype))
		var outputs [2][]byte
		for i := range outputs {
			a := p.HostArgs(p.Spoiled())
			outputs[i] = a.O.Host
			if i == 1 {
				a.K, a.V = spread(a.K, a.Shape, kv, d), spread(a.V, a.Shape, kv, d)
			}
			require.NoError(t, e.forward(k, cfg, a, 1, false, false))
			outputs[i] = bytes.Clone(outputs[i])
		}
		require.Equal(t, outputs[0], outputs[1], "%v", kv)

		for n, c := range decodeCases(d, kv) {
			p, err := cases.NewProblem(c, dtype)
			require.NoError(t, err)
			before := p.Wild(uint64(n))
			var after [][]byte
			for _, image := range before {
				after = append(after, bytes.Clone(image))
			}
			cfg, sound := p.Config(cases.On(attention.TierCPU, dtype)), p.HostArgs(p.Image)
			var l tensors.Layouts
			require.NoError(t, l.Check(&cfg, &sound))
			require.NoError(t, e.forwardUnchecked(k, cfg, p.HostArgs(after), l.All(), 2, false, false))
			require.NoError(t, p.TrespassTensors(before, after), "%v", c)
		}
	}
}

// asQCases are cases of few rows for K and V stored as Q, up to a head dim.
func asQCases(d int) []cases.Case {
	list := decodeCases(d, attention.KVSame)
	add := func(name string, c cases.Case) {
		c.Name, c.LSE = name, true
		if c.D == 0 {
			c.D = d
		}
		if c.Dv = c.D; c.Shape.Hq == 0 {
			c.Shape.Hq, c.Shape.Hkv = 8, 2
		}
		if c.Seqs == nil {
			c.Seqs = []cases.Seq{{ID: 1, Rows: 1, Keys: 300}, {ID: 2, Rows: 1, Keys: 33}, {ID: 3, Rows: 1, Keys: 0}, {ID: 4, Rows: 1, Keys: 250}}
		}
		list = append(list, c)
	}
	rows := []cases.Seq{{ID: 1, Rows: 3, Keys: 100}, {ID: 2, Rows: 8, Keys: 5}, {ID: 3, Rows: 1, Keys: 290}}
	add("window", cases.Case{LooseK: true, Window: attention.WindowOf(40, 0), Causal: attention.BottomRight})
	add("window-both", cases.Case{Seqs: rows, LooseQ: true, LooseK: true, Window: attention.WindowOf(20, 3), Align: attention.BottomRight})
	add("softcap", cases.Case{Seqs: rows, PackedQ: true, Softcap: 3, Causal: attention.BottomRight, PageSize: 16})
	add("alibi", cases.Case{Seqs: rows, PackedQ: true, ALiBi: true, Causal: attention.BottomRight, LooseK: true})
	add("sinks", cases.Case{LooseK: true, Sinks: true, PageSize: 32, Window: attention.WindowOf(50, 0), Causal: attention.BottomRight})
	add("all", cases.Case{Seqs: rows, PackedQ: true, LooseK: true, PageSize: 16, Sinks: true, ALiBi: true, Softcap: 5, Window: attention.WindowOf(60, 0), Causal: attention.BottomRight})
	add("less", cases.Case{D: d - 24, LooseK: true})
	add("one-head", cases.Case{Shape: attention.Shape{Hq: 3, Hkv: 3}, Layout: cases.BSHD})
	return list
}

// The decode kernels of K and V stored as Q, and the quantized ones with the tiles of tier cuda, run by the CPU.
func TestDecodeKernelsOfTierCUDAOnTheCPU(t *testing.T) {
	testlevel.HostOnly(t)
	table, err := embedded()
	require.NoError(t, err)
	n := 0
	for i, dtype := range []attention.DType{attention.F16, attention.BF16} {
		for j, d := range []int{128, 64, 256} {
			if level := testlevel.Get(); level != testlevel.All && level != testlevel.Exhaustive && i != j {
				continue // f16 at 128 and bf16 at 64
			}
			e := newDecodeEmulator(t, table.cudaDecodes, dtype.String(), d, nil)
			for _, kv := range append([]attention.KVType{attention.KVSame}, decodeTypes...) {
				k, why := decodeKernel(table.cudaDecodes, "sm_90a", dtype.String(), kv.String(), d, d)
				require.Empty(t, why)
				list := decodeCases(d, kv)[:2]
				if kv == attention.KVSame {
					list = asQCases(d)
				}
				for _, c := range list {
					n++
					t.Run(fmt.Sprintf("%v/%v", dtype, c), func(t *testing.T) {
						p, err := cases.NewProblem(c, dtype)
						require.NoError(t, err)
						require.NoError(t, conformDecode(e, k, p, 1+n%4))
					})
				}
			}
		}
	}
	t.Logf("%d cases", n)
}

// A decode kernel of K and V stored as Q with one fault fails one of its cases.
func TestDecodeKernelsFaultsAreFound(t *testing.T) {
	testlevel.HostOnly(t)
	table, err := embedded()
	require.NoError(t, err)
	k, why := decodeKernel(table.cudaDecodes, "sm_90a", "f16", "same", 64, 64)
	require.Empty(t, why)
	for _, x := range []struct{ of, file, right, planted string }{
		{"window", "decode.cu", "position - min(p.left, Most)", "position - min(p.left, Most) + 1"},
		{"window", "decode_copy.h", "(T::TYPE != SAME || key >= skip)", "true"},
		{"window-both", "decode.cu", "T::TYPE == SAME && tile * KEYS + sub * Sub + key < begin", "false"},
		{"softcap", "decode.cu", "if (p.softcap != 0)", "if (false)"},
		{"alibi", "decode.cu", "fabsf(float(position - (tile", "fabsf(float(row - (tile"},
		{"sinks", "decode_combine.h", "by *= fa2::take_sink", "fa2::take_sink"},
		{"less", "decode.cu", "if (T::TYPE == SAME && laneNow() % (T::ROW / 16) * 8 >= p.headDim) skip = Sub;", ""},
		{"less", "decode_combine.h", "if (column >= p.headDim) return;", "if (false) return;"},
		{"rows", "decode_products.h", "lane % 8 + lane / 16 * 8, 2 * f + lane / 8 % 2", "lane % 16, 2 * f + lane / 16"},
		{"pages", "decode.cu", "key % p.pageSize };", "key };"},
		{"one-row", "decode_combine.h", "int(blockIdx.y + 1) * group - head", "8"},
	} {
		requireOnce(t, x.file, x.right)
		list := asQCases(64)
		i := slices.IndexFunc(list, func(c cases.Case) bool { return c.Name == x.of })
		require.GreaterOrEqual(t, i, 0, "there is no case %q", x.of)
		requireFault(t, x.of+" "+x.planted, func(t *testing.T) error {
			e := newDecodeEmulator(t, table.cudaDecodes, "f16", 64, planting(t, x.file, x.right, x.planted))
			p, err := cases.NewProblem(list[i], attention.F16)
			require.NoError(t, err)
			return conformDecode(e, k, p, 3)
		})
	}
}

// spread is a packed tensor [batch, head, row, dim] as [batch, row, head, dim] with four bytes or a block behind each row.
func spread(x attention.Tensor, s attention.Shape, kv attention.KVType, d int) (to attention.Tensor) {
	unit, elements := 1, 4
	if kv.Blocked() {
		unit, elements = kv.RowBytes(attention.F16, blockElements), 2*blockElements // an even number of bytes is not enough
	}
	rowBytes := kv.RowBytes(attention.F16, d)
	stride := d + elements
	bytesOf := func(elements int) int {
		if kv.Blocked() {
			return elements / blockElements * unit
		}
		return elements
	}
	to.Strides = attention.Strides{Batch: int64(s.Sk * s.Hkv * stride), Seq: int64(s.Hkv * stride), Head: int64(stride)}
	to.Host = bytes.Repeat([]byte{0x7f}, bytesOf(s.B*s.Sk*s.Hkv*stride))
	for b := range s.B {
		for h := range s.Hkv {
			for row := range s.Sk {
				from := x.Host[((b*s.Hkv+h)*s.Sk+row)*rowBytes:][:rowBytes]
				copy(to.Host[bytesOf(((b*s.Sk+row)*s.Hkv+h)*stride):], from)
			}
		}
	}
	return to
}
