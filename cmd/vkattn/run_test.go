package main

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/npy"
	"vkattn/internal/accuracy"
	"vkattn/internal/half"
	"vkattn/internal/inputs"
	"vkattn/internal/oracle"
	"vkattn/internal/problem"
)

// layout is the order of the axes in the files.
type layout bool

const bhsd, bshd layout = false, true

// roundTrip is one problem through files.
type roundTrip struct {
	shape  attention.Shape
	config attention.Config
	file   attention.DType // f16 or f32
	layout layout
	flags  []string
}

var roundTrips = map[string]roundTrip{
	"f16":           {attention.Shape{B: 2, Hq: 3, Hkv: 3, Sq: 33, Sk: 33}, attention.Config{HeadDim: 40}, attention.F16, bhsd, nil},
	"f16, bshd":     {attention.Shape{B: 2, Hq: 3, Hkv: 3, Sq: 33, Sk: 47}, attention.Config{HeadDim: 40}, attention.F16, bshd, nil},
	"f32":           {attention.Shape{B: 1, Hq: 2, Hkv: 2, Sq: 20, Sk: 65}, attention.Config{HeadDim: 64, DType: attention.F32}, attention.F32, bhsd, nil},
	"f32 as bf16":   {attention.Shape{B: 1, Hq: 4, Hkv: 2, Sq: 31, Sk: 31}, attention.Config{HeadDim: 32, DType: attention.BF16}, attention.F32, bhsd, []string{"--dtype", "bf16"}},
	"f32 as f16":    {attention.Shape{B: 1, Hq: 4, Hkv: 1, Sq: 31, Sk: 31}, attention.Config{HeadDim: 32, HeadDimV: 17}, attention.F32, bshd, []string{"--dtype", "f16"}},
	"f16 as f32":    {attention.Shape{B: 1, Hq: 2, Hkv: 2, Sq: 9, Sk: 70}, attention.Config{HeadDim: 31, DType: attention.F32}, attention.F16, bhsd, []string{"--dtype", "f32"}},
	"causal, scale": {attention.Shape{B: 1, Hq: 2, Hkv: 2, Sq: 40, Sk: 17}, attention.Config{HeadDim: 16, Causal: attention.BottomRight, Scale: attention.ScaleOf(-0.5)}, attention.F16, bhsd, []string{"--causal", "bottom-right", "--scale", "-0.5"}},
}

func TestRunOnTheCPUAgreesWithTheReference(t *testing.T) {
	for name, c := range roundTrips {
		t.Run(name, func(t *testing.T) { c.check(t, "--device", "cpu") })
	}
}

func TestRunOnADeviceAgreesWithTheReference(t *testing.T) {
	driver(t)
	for name, c := range roundTrips {
		t.Run(name, func(t *testing.T) { c.check(t, "--tier", "scalar") })
	}
	// A named device: auto takes tier cpu before a driver of the CPU.
	t.Run("auto", func(t *testing.T) { roundTrips["causal, scale"].check(t, "--tier", "auto", "--device", "0") })
}

func (c roundTrip) check(t *testing.T, where ...string) {
	const seed = 5
	dir := t.TempDir()
	s, d, dv := c.shape, c.config.HeadDim, c.config.ValueDim()
	args := attention.Args{Shape: s}
	command := append([]string{"run", "--json", "--layout", layoutName(bool(c.layout), "bhsd", "bshd")}, where...)
	at := func(name string) string { return filepath.Join(dir, name+".npy") }
	for i, in := range []struct {
		name             string
		heads, rows, dim int
		tensor           *attention.Tensor
	}{{"q", s.Hq, s.Sq, d, &args.Q}, {"k", s.Hkv, s.Sk, d, &args.K}, {"v", s.Hkv, s.Sk, dv, &args.V}} {
		axes, strides := []int{s.B, in.heads, in.rows, in.dim}, attention.BHSD(in.heads, in.rows, in.dim)
		if c.layout == bshd {
			axes[1], axes[2] = axes[2], axes[1]
			strides = attention.BSHD(in.heads, in.rows, in.dim)
		}
		data := inputs.New(int64(s.B*in.heads*in.rows*in.dim), c.file, inputs.Normal, seed+uint64(i))
		*in.tensor = attention.Tensor{Host: convert(data, c.file, c.config.DType), Strides: strides}
		require.NoError(t, os.WriteFile(at(in.name), npyBytes(fmt.Sprintf("<f%d", c.file.Size()), false, axes, data), 0o644))
		command = append(command, "--"+in.name, at(in.name))
	}
	command = append(command, "--o", at("o"), "--lse", at("lse"))
	stdout, _ := succeeds(t, append(command, c.flags...)...)

	out := decoded[result](t, stdout)
	require.Equal(t, []int{s.B, s.Hq, s.Hkv, s.Sq, s.Sk, d, dv}, []int{out.B, out.Hq, out.Hkv, out.Sq, out.Sk, out.D, out.Dv})
	require.Equal(t, c.config.DType, out.DType)
	require.Equal(t, c.config.ScaleValue(), out.Scale)

	ref, refLSE, err := attention.Reference(c.config, args)
	require.NoError(t, err)
	low, lowLSE, err := oracle.Low(problem.Config(c.config), args, attention.AllRows(s))
	require.NoError(t, err)
	o := readFloats(t, at("o"), c.layout.axes(s.B, s.Hq, s.Sq, dv))
	if c.layout == bshd {
		o = heads(o, s.B, s.Sq, s.Hq, dv)
	}
	report := accuracy.Judge(accuracy.Forward(c.config.DType), dv, o, ref, low)
	require.Empty(t, report.Reasons())
	lse := accuracy.Judge(accuracy.ForwardLSE(c.config.DType), 1, readFloats(t, at("lse"), []int{s.B, s.Hq, s.Sq}), refLSE, lowLSE)
	require.Empty(t, lse.Reasons())
}

// axes are the axes of a file in a layout.
func (l layout) axes(b, h, s, d int) []int {
	if l == bshd {
		return []int{b, s, h, d}
	}
	return []int{b, h, s, d}
}

// heads turns BSHD values to BHSD.
func heads(in []float32, b, s, h, d int) []float32 {
	var out []float32
	for bi := range b {
		for hi := range h {
			for si := range s {
				at := ((bi*s+si)*h + hi) * d
				out = append(out, in[at:at+d]...)
			}
		}
	}
	return out
}

func readFloats(t *testing.T, path string, shape []int) []float32 {
	f, err := npy.Open(path)
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	a, err := f.Load()
	require.NoError(t, err)
	require.Equal(t, npy.Float32, a.DType)
	require.Equal(t, shape, a.Shape)
	out := make([]float32, len(a.Data)/4)
	half.DecodeF32(out, a.Data)
	return out
}

func TestRunPrintsThePlanOnStdoutAlone(t *testing.T) {
	_, args := goodFiles(t)
	stdout, stderr := succeeds(t, args...)
	require.Regexp(t, `^plan: tier cpu.*\n$`, stdout)
	require.Empty(t, stderr)
}

func TestRunReplacesAnOldOutput(t *testing.T) {
	dir, args := goodFiles(t)
	o := filepath.Join(dir, "o.npy")
	require.NoError(t, os.WriteFile(o, []byte("old"), 0o644))
	refused(t, exitUnsupported, "", with(args, "--tier", "scalar")...)
	old := readFile(t, o)
	require.Equal(t, "old", string(old), "a failed run must leave the old file")
	succeeds(t, without(args, "--lse")...)
	readFloats(t, o, []int{2, 4, 5, 3})
	require.NoFileExists(t, filepath.Join(dir, "lse.npy"))
}

func TestMixedFilesAreF32UnlessSaid(t *testing.T) {
	dir, args := goodFiles(t)
	v := npyBytes(">f4", true, []int{2, 2, 6, 3}, make([]byte, 4*72))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "v.npy"), v, 0o644))
	for dtype, want := range map[string]attention.DType{"": attention.F32, "bf16": attention.BF16} {
		more := append(args, "--json")
		if dtype != "" {
			more = with(more, "--dtype", dtype)
		}
		stdout, _ := succeeds(t, more...)
		out := decoded[result](t, stdout)
		require.Equal(t, want, out.DType)
	}
}
