package main

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/npy"
	"vkattn/internal/half"
	"vkattn/internal/hostmem"
	"vkattn/internal/inputs"
)

// backwardFiles adds dO of random numbers and the outputs of gradients to a call of
// `vkattn run` on random float32 files.
type backwardFiles struct {
	*withOptions
	do, dlse attention.Vector
}

// gradientRuns are calls with gradients by name, and the tensors that their files hold.
var gradientRuns = map[string]func(f *backwardFiles){
	"padded": func(f *backwardFiles) {
		f.plain()
		f.gradients([]int{3, 4, 7, testDv}, []int{3, 4, 7})
	},
	"bshd, causal, softcap": func(f *backwardFiles) {
		f.q([]int{3, 7, 4, testD}, attention.BSHD(4, 7, testD))
		f.k([]int{3, 33, 2, testD}, attention.BSHD(2, 33, testD))
		f.v([]int{3, 33, 2, testDv}, attention.BSHD(2, 33, testDv))
		f.flag("--layout", "bshd", "--causal", "bottom-right", "--softcap", "2")
		f.cfg.Causal, f.cfg.Softcap = attention.BottomRight, 2
		f.gradients([]int{3, 7, 4, testDv}, []int{3, 4, 7})
	},
	"dropout": func(f *backwardFiles) {
		f.plain()
		f.cfg.Dropout, f.args.DropoutSeed = 0.5, 77
		f.flag("--dropout", "0.5", "--dropout-seed", "77")
		f.gradients([]int{3, 4, 7, testDv}, []int{3, 4, 7})
	},
	"modifiers with tables": func(f *backwardFiles) {
		f.plain()
		f.modifiers()
		f.flag("--dtable", "pairs="+f.at("dpairs"))
		f.gradients([]int{3, 4, 7, testDv}, []int{3, 4, 7})
	},
	"bias, sinks": func(f *backwardFiles) {
		f.plain()
		f.args.Bias = &attention.Bias{DType: attention.F32, Batches: 1, Heads: 4, Rows: 1}
		f.args.Bias.Host = f.floats("bias", 9, 1, 4, 1, 33).Host
		f.args.Sinks = f.floats("sinks", 10, 4)
		f.flag("--dbias", f.at("dbias"), "--dsinks", f.at("dsinks"))
		f.gradients([]int{3, 4, 7, testDv}, []int{3, 4, 7})
	},
	"packed": func(f *backwardFiles) {
		f.packedQ()
		f.k([]int{60, 2, testD}, attention.BSHD(2, 60, testD))
		f.v([]int{60, 2, testDv}, attention.BSHD(2, 60, testDv))
		f.args.Varlen.CuK, f.args.Varlen.TotalK = f.ints("cu-seqlens-k", []int{4}, 0, 33, 40, 60), 60
		f.gradients([]int{10, 4, testDv}, []int{4, 10})
	},
	"V in K": func(f *backwardFiles) {
		f.plainQ()
		f.k([]int{3, 2, 33, testD}, attention.BHSD(2, 33, testD))
		f.args.V, f.cfg.HeadDimV = f.args.K, 16
		f.flag("--v-dim", "16")
		f.gradients([]int{3, 4, 7, 16}, []int{3, 4, 7})
	},
}

func (f *backwardFiles) at(name string) string { return filepath.Join(f.dir, name+".npy") }

func (f *backwardFiles) gradients(o, lse []int) {
	f.do, f.dlse = f.floats("do", 21, o...), f.floats("dlse", 22, lse...)
	f.flag("--dq", f.at("dq"), "--dk", f.at("dk"), "--dv", f.at("dv"))
}

func newBackwardFiles(t *testing.T, name string) *backwardFiles {
	f := &backwardFiles{withOptions: base(t)}
	gradientRuns[name](f)
	return f
}

// reference is the gradients by the library, in the order of the files.
func (f *backwardFiles) reference(t *testing.T) map[string][]float32 {
	a := attention.BackwardArgs{Args: f.args}
	strides := func(like attention.Tensor, dim, of int) attention.Strides {
		return attention.Strides{Batch: like.Strides.Batch / int64(of) * int64(dim), Head: like.Strides.Head / int64(of) * int64(dim), Seq: like.Strides.Seq / int64(of) * int64(dim)}
	}
	dv := f.cfg.ValueDim()
	oStrides := strides(f.args.Q, dv, testD)
	a.DO = attention.Tensor{Host: f.do.Host, Strides: oStrides}
	a.DLSE.Host = f.dlse.Host
	a.O = attention.Tensor{Host: make([]byte, len(f.do.Host)), Strides: oStrides}
	a.LSE.Host = make([]byte, len(f.dlse.Host))
	a.DQ = attention.Tensor{Host: make([]byte, len(f.args.Q.Host)), Strides: f.args.Q.Strides}
	a.DK = attention.Tensor{Host: make([]byte, len(f.args.K.Host)), Strides: f.args.K.Strides}
	a.DV = attention.Tensor{Host: make([]byte, len(f.args.K.Host)/testD*dv), Strides: strides(f.args.K, dv, testD)}
	out := map[string]*[]byte{"dq": &a.DQ.Host, "dk": &a.DK.Host, "dv": &a.DV.Host}
	if f.args.Bias != nil {
		a.DBias = attention.Tensor{Host: make([]byte, len(f.args.Bias.Host))}
		out["dbias"] = &a.DBias.Host
	}
	if f.args.Sinks.Given() {
		a.DSinks.Host = make([]byte, len(f.args.Sinks.Host))
		out["dsinks"] = &a.DSinks.Host
	}
	if f.cfg.ScoreMod.Given() {
		a.DTables = []attention.Table{{Name: "pairs", Vector: attention.Vector{Host: make([]byte, 4*4*5)}}}
		out["dtable pairs"] = &a.DTables[0].Host
	}
	op, err := attention.New(nil, f.cfg)
	require.NoError(t, err)
	require.NoError(t, op.Forward(nil, a.Args))
	require.NoError(t, op.Backward(nil, a))
	values := map[string][]float32{}
	for name, host := range out {
		values[name] = make([]float32, len(*host)/4)
		half.DecodeF32(values[name], *host)
	}
	return values
}

// readAny reads a float32 file of any shape.
func readAny(t *testing.T, path string) (values []float32, shape []int) {
	f, err := npy.Open(path)
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	return readFloats(t, path, f.Shape), f.Shape
}

func (f *backwardFiles) check(t *testing.T, where ...string) {
	want := f.reference(t)
	stdout, _ := succeeds(t, slices.Concat([]string{"run", "--json", "--verify"}, where, f.flags)...)
	out := decoded[result](t, stdout)
	require.Equal(t, out.Backward.Tier, out.Plan.Tier)
	require.NotNil(t, out.Backward)
	require.Regexp(t, `^ok: .*; gradients ok: `, out.Verified)
	require.Len(t, out.Gradients, len(want))
	for name, values := range want {
		got, shape := readAny(t, out.Gradients[name])
		require.InDeltaSlice(t, values, got, 2e-4, name)
		like := map[string]string{"dq": "q", "dk": "k", "dv": "v", "dbias": "bias", "dsinks": "sinks", "dtable pairs": "pairs"}[name]
		if _, err := os.Stat(f.at(like)); err == nil {
			_, likeShape := readAny(t, f.at(like))
			require.Equal(t, likeShape, shape, name)
		}
	}
	require.NoFileExists(t, f.at("o"))
}

func TestRunWritesGradients(t *testing.T) {
	for name := range gradientRuns {
		t.Run(name, func(t *testing.T) { newBackwardFiles(t, name).check(t, "--device", "cpu") })
	}
}

func TestRunWritesGradientsOfADevice(t *testing.T) {
	driver(t)
	for _, name := range []string{"packed", "modifiers with tables"} {
		newBackwardFiles(t, name).check(t, "--tier", "scalar")
	}
}

// O and LSE from files take the place of the forward pass, and give the same gradients.
func TestRunTakesOAndLSEFromFiles(t *testing.T) {
	f := newBackwardFiles(t, "packed")
	first := slices.Concat([]string{"run", "--device", "cpu", "--o", f.at("o"), "--lse", f.at("lse")}, f.flags)
	stdout, _ := succeeds(t, first...)
	require.Regexp(t, `^plan: tier cpu.*\nbackward: tier cpu.*\n$`, stdout)
	want := map[string][]float32{}
	for _, name := range []string{"dq", "dk", "dv"} {
		want[name], _ = readAny(t, f.at(name))
		require.NoError(t, os.Remove(f.at(name)))
	}
	stdout, _ = succeeds(t, slices.Concat([]string{"run", "--device", "cpu", "--verify", "--o-in", f.at("o"), "--lse-in", f.at("lse")}, f.flags)...)
	require.Regexp(t, `^backward: tier cpu.*\nverified: gradients ok: .{1,78}\n(  .{1,98}\n)+$`, stdout, "at most 100 columns")
	for name, values := range want {
		got, _ := readAny(t, f.at(name))
		require.Equal(t, values, got, name)
	}
	// A wrong LSE gives wrong gradients, and nothing is written.
	require.NoError(t, os.WriteFile(f.at("lse"), npyBytes("<f4", false, []int{4, 10}, make([]byte, 160)), 0o644))
	require.NoError(t, os.Remove(f.at("dq")))
	refused(t, exitFailure, "wrong gradients: FAIL: ", slices.Concat([]string{"run", "--device", "cpu", "--verify", "--o-in", f.at("o"), "--lse-in", f.at("lse")}, f.flags)...)
	require.NoFileExists(t, f.at("dq"))
}

// Gradients over the range of float16 are Inf, unless --f32-gradients keeps them in float32.
func TestRunKeepsGradientsInFloat32(t *testing.T) {
	for _, on := range []string{"cpu", "device"} {
		t.Run(on, func(t *testing.T) {
			where := []string{"--device", "cpu"}
			if on == "device" {
				driver(t)
				where = []string{"--tier", "scalar"}
			}
			dir := t.TempDir()
			at := func(name string) string { return filepath.Join(dir, name+".npy") }
			const rows, dim = 5, 8
			ones := func(n int, x float32) []byte {
				v, out := make([]float32, n), make([]byte, 2*n)
				for i := range v {
					v[i] = x
				}
				half.EncodeF16(out, v)
				return out
			}
			for name, file := range map[string][]byte{
				"q": npyBytes("<f2", false, []int{1, 1, rows, dim}, ones(rows*dim, 1)), "k": npyBytes("<f2", false, []int{1, 1, 1, dim}, ones(dim, 1)),
				"v": npyBytes("<f2", false, []int{1, 1, 1, dim}, ones(dim, 1)), "do": npyBytes("<f2", false, []int{1, 1, rows, dim}, ones(rows*dim, 38000)),
			} {
				require.NoError(t, os.WriteFile(at(name), file, 0o644))
			}
			args := append([]string{"run", "--q", at("q"), "--k", at("k"), "--v", at("v"), "--do", at("do"), "--dv", at("dv"), "--dq", at("dq")}, where...)
			succeeds(t, args...)
			got, _ := readAny(t, at("dv"))
			require.True(t, math.IsInf(float64(got[0]), 1), "rounded to the storage type: %v", got)
			stdout, _ := succeeds(t, append(args, "--f32-gradients", "--verify", "--json")...)
			got, _ = readAny(t, at("dv"))
			require.InDeltaSlice(t, []float32{190000, 190000, 190000, 190000, 190000, 190000, 190000, 190000}, got, 100)
			got, _ = readAny(t, at("dq"))
			require.Len(t, got, rows*dim)
			require.Contains(t, stdout, `"dtype": "f16"`)
		})
	}
	_, args := goodGradients(t)
	refused(t, exitInput, "--f32-gradients needs --dq, --dk or --dv", append(without(args, "--dq"), "--f32-gradients")...)
}

// goodGradients are float16 files of one small problem with dO.
func goodGradients(t *testing.T) (dir string, args []string) {
	dir, args = goodFiles(t)
	at := func(name string) string { return filepath.Join(dir, name+".npy") }
	data := inputs.New(2*4*5*3, attention.F16, inputs.Normal, 4)
	require.NoError(t, os.WriteFile(at("do"), npyBytes("<f2", false, []int{2, 4, 5, 3}, data), 0o644))
	return dir, append(args, "--do", at("do"), "--dq", at("dq"))
}

func TestBadGradientFlagsAreBadInput(t *testing.T) {
	dir, args := goodGradients(t)
	at := func(name string) string { return filepath.Join(dir, name+".npy") }
	for name, file := range map[string][]byte{"bias": zeros(1, 1, 1, 6), "sinks": zeros(4), "ids": npyInts([]int{4}, 0, 1, 2, 3), "long": zeros(4097), "lse0": zeros(2, 4, 5), "short": zeros(2, 4, 5, 2),
		"table": npyInts([]int{2, 1}, 0, 1)} {
		require.NoError(t, os.WriteFile(at(name), file, 0o644))
	}
	noO := without(without(args, "--o"), "--lse")
	modified := func(mod string, more ...string) []string {
		return slices.Concat(args, []string{"--score-mod", mod, "--table", "ids=" + at("ids"), "--table", "t=" + at("sinks")}, more)
	}
	for name, c := range map[string]struct {
		args []string
		code int
		want string
	}{
		"no dO":              {without(args, "--do"), exitInput, "--do is needed with --dq"},
		"no gradient":        {without(args, "--dq"), exitInput, "--do needs an output"},
		"empty name":         {with(args, "--dk", ""), exitInput, "--dk needs a file name"},
		"dlse alone":         {with(without(without(args, "--do"), "--dq"), "--dlse", at("lse0")), exitInput, "--dlse needs an output"},
		"shape of dO":        {with(args, "--do", at("short")), exitInput, "--do: shape [2 4 5 2], want [2 4 5 3]"},
		"shape of dLSE":      {with(args, "--dlse", at("short")), exitInput, "--dlse: shape [2 4 5 2], want [2 4 5]"},
		"shape of LSE":       {with(with(noO, "--o-in", at("do")), "--lse-in", at("do")), exitInput, "--lse-in: shape"},
		"O without LSE":      {with(noO, "--o-in", at("do")), exitInput, "--o-in needs --lse-in"},
		"LSE without O":      {with(noO, "--lse-in", at("lse0")), exitInput, "--lse-in needs --o-in"},
		"O twice":            {with(with(without(args, "--lse"), "--o-in", at("do")), "--lse-in", at("lse0")), exitInput, "--o and --o-in exclude"},
		"LSE twice":          {with(with(without(args, "--o"), "--o-in", at("do")), "--lse-in", at("lse0")), exitInput, "--lse and --lse-in exclude"},
		"dBias without bias": {with(args, "--dbias", at("dbias")), exitInput, "--dbias needs --bias"},
		"dSinks, no sinks":   {with(args, "--dsinks", at("dsinks")), exitInput, "--dsinks needs --sinks"},
		"same file":          {with(args, "--dk", at("dq")), exitInput, "the same file as --dq"},
		"over an input":      {with(args, "--dk", at("do")), exitInput, "the same file as --do"},
		"no such folder":     {with(args, "--dv", filepath.Join(dir, "no", "dv.npy")), exitInput, "--dv"},
		"pages":              {with(args, "--block-table", at("table")), exitUnsupported, "--block-table has no gradients"},
		"dTable, no name":    {with(args, "--dtable", at("dt")), exitInput, "want name=file"},
		"dTable, no table":   {with(args, "--dtable", "t="+at("dt")), exitInput, "--dtable t needs --table t=file"},
		"dTable twice":       {modified("s + t[ids[h]]", "--dtable", "t="+at("dt"), "--dtable", "t="+at("other")), exitInput, "--dtable t is given twice"},
		"dTable of integers": {modified("s + t[ids[h]]", "--dtable", "ids="+at("dt")), exitInput, "--dtable[ids] is given, want a table of floats that --score-mod reads"},
		"dTable over dQ":     {modified("s + t[ids[h]]", "--dtable", "t="+at("dq")), exitInput, "--dtable t " + at("dq") + " is the same file as --dq"},
		"dTable over table":  {modified("s + t[ids[h]]", "--dtable", "t="+at("sinks")), exitInput, "is the same file as a --table"},
		"dTable without dO":  {without(without(modified("s + t[ids[h]]", "--dtable", "t="+at("dt")), "--do"), "--dq"), exitInput, "--do is needed with --dtable t"},
		"a large table":      {slices.Concat(args, []string{"--score-mod", "s + t[j]", "--table", "t=" + at("long"), "--dtable", "t=" + at("dt")}), exitUnsupported, "gradient of table t: 4097 entries for a head, at most 4096 have one"},
		"quantized":          {with(args, "--kv-dtype", "q8_0"), exitUnsupported, "--kv-dtype q8_0 has no gradients"},
	} {
		t.Run(name, func(t *testing.T) {
			refused(t, c.code, c.want, c.args...)
			for _, out := range []string{"o", "lse", "dq", "dk", "dv", "dbias", "dsinks", "dt"} {
				require.NoFileExists(t, at(out))
			}
		})
	}
	succeeds(t, args...)
	require.FileExists(t, at("dq"))
	require.FileExists(t, at("o"))
}

func TestRunWritesNoGradientThatIsWrong(t *testing.T) {
	dir, args := goodGradients(t)
	stderr := spoiledRun(t, args, func(r *attention.BackwardArgs) { r.DQ.Host[1] = 0x44 })
	require.Regexp(t, `^vkattn: wrong gradients: FAIL: dQ: .*batch 0, head 0, row 0.*\n$`, stderr)
	for _, name := range []string{"o", "lse", "dq"} {
		require.NoFileExists(t, filepath.Join(dir, name+".npy"))
	}
}

// The memory that run says it needs includes the gradients. The files are sparse, and
// nothing is read.
func TestRunRefusesGradientsThatDoNotFit(t *testing.T) {
	dir := t.TempDir()
	t.Setenv(hostmem.Variable, "600MiB")
	args := []string{"run", "--device", "cpu"}
	for _, name := range []string{"q", "k", "v", "do"} {
		sparseFile(t, dir, name, "<f2", 1, 1, 1<<19, 64) // 64 MiB
		args = append(args, "--"+name, filepath.Join(dir, name+".npy"))
	}
	for _, name := range []string{"dq", "dk", "dv"} {
		args = append(args, "--"+name, filepath.Join(dir, name+".npy"))
	}
	// 8 tensors of 64 MiB, LSE, and a float32 copy of a tensor for its file.
	refused(t, exitUnsupported, "needs "+hostmem.Bytes(8<<26+4<<19+1<<27)+" of host memory", args...)
}
