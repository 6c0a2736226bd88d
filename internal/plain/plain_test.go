package plain_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/half"
	"vkattn/internal/plain"
	"vkattn/internal/problem"
	"vkattn/internal/testdevice"
	"vkattn/internal/testlevel"
	"vkattn/vk"
)

func device(t *testing.T) *vk.Device {
	t.Helper()
	switch name := os.Getenv("VKATTN_DRIVER"); {
	case name == "", name == "none":
		t.Skip("no Vulkan driver under test (VKATTN_DRIVER)")
	case testdevice.Null():
		t.Skip("a null device computes nothing")
	}
	dev, err := vk.Open(vk.Options{Validation: os.Getenv("VKATTN_VALIDATION") == "1"})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, dev.Close())
		require.Empty(t, dev.ValidationMessages())
	})
	return dev
}

func encode(t attention.DType, x []float32) []byte {
	b := make([]byte, len(x)*t.Size())
	switch t {
	case attention.F16:
		half.EncodeF16(b, x)
	case attention.BF16:
		half.EncodeBF16(b, x)
	default:
		half.EncodeF32(b, x)
	}
	return b
}

func decode(t attention.DType, b []byte) []float32 {
	x := make([]float32, len(b)/t.Size())
	switch t {
	case attention.F16:
		half.DecodeF16(x, b)
	case attention.BF16:
		half.DecodeBF16(x, b)
	default:
		half.DecodeF32(x, b)
	}
	return x
}

// nearBy bounds the root mean square of the error relative to the root mean square of the
// values.
func nearBy(t *testing.T, name string, got []float32, want []float64, limit float64) {
	t.Helper()
	require.Len(t, got, len(want), name)
	var wrong, all float64
	for i, w := range want {
		wrong += (float64(got[i]) - w) * (float64(got[i]) - w)
		all += w * w
	}
	require.LessOrEqual(t, math.Sqrt(wrong/max(all, 1e-30)), limit, name)
}

// O and all gradients agree with the float64 reference, for every tier and type of the
// device, with grouped heads, Sq != Sk and lengths that no tile divides. Memory that the
// result must not depend on holds NaN before the call.
func TestPlainAttentionIsAttention(t *testing.T) {
	dev := device(t)
	type target struct {
		tier  attention.Tier
		dtype attention.DType
		limit float64
	}
	shapes := []struct {
		shape  attention.Shape
		d, dv  int
		causal attention.Causal
	}{
		{attention.Shape{B: 2, Hq: 4, Hkv: 2, Sq: 37, Sk: 51}, 16, 24, attention.BottomRight},
		{attention.Shape{B: 1, Hq: 2, Hkv: 2, Sq: 40, Sk: 19}, 64, 64, attention.BottomRight}, // rows without keys
	}
	if !testlevel.IsBrief() {
		shapes = append(shapes, []struct {
			shape  attention.Shape
			d, dv  int
			causal attention.Causal
		}{
			{attention.Shape{B: 1, Hq: 1, Hkv: 1, Sq: 1, Sk: 1}, 8, 8, attention.CausalNone},
			{attention.Shape{B: 1, Hq: 3, Hkv: 1, Sq: 150, Sk: 131}, 64, 128, attention.TopLeft},
			{attention.Shape{B: 1, Hq: 1, Hkv: 1, Sq: 129, Sk: 260}, 256, 256, attention.CausalNone},
		}...)
	}
	ran := 0
	for _, to := range []target{{attention.TierScalar, attention.F32, 2e-6}, {attention.TierCoopMat, attention.F16, 2e-3}, {attention.TierCoopMat, attention.BF16, 2e-2}} {
		for i, s := range shapes {
			cfg := attention.Config{DType: to.dtype, Tier: to.tier, HeadDim: s.d, HeadDimV: s.dv, Causal: s.causal}
			if to.dtype == attention.F32 { // any head dim
				cfg.HeadDim, cfg.HeadDimV = max(1, s.d-i-1), max(1, s.dv-1)
			}
			op, err := plain.New(dev, problem.Config(cfg), s.shape, true)
			if errors.Is(err, attention.ErrUnsupported) {
				t.Logf("%v %v: %v", to.tier, to.dtype, err)
				break
			}
			require.NoError(t, err)
			t.Run(fmt.Sprintf("%v/%v/%v", to.tier, to.dtype, s.shape), func(t *testing.T) { compare(t, dev, op, cfg, s.shape, to.limit) })
			require.NoError(t, op.Close())
			ran++
		}
	}
	if name := os.Getenv("VKATTN_DRIVER"); name == "lavapipe" {
		require.Equal(t, 2*len(shapes), ran, "f32 and f16")
	}
}

func compare(t *testing.T, dev *vk.Device, op *plain.Op, cfg attention.Config, shape attention.Shape, limit float64) {
	random := rand.New(rand.NewPCG(1, 2))
	var host, onDevice attention.BackwardArgs
	host.Shape, onDevice.Shape = shape, shape
	stream, err := dev.NewStream("test")
	require.NoError(t, err)
	defer func() { require.NoError(t, stream.Close()) }()
	rows, keys := shape.B*shape.Hq*shape.Sq, shape.B*shape.Hkv*shape.Sk
	var outputs []*vk.Buffer
	for _, x := range []struct {
		host, device *attention.Tensor
		n            int
		output       bool
	}{
		{&host.Q, &onDevice.Q, rows * cfg.HeadDim, false}, {&host.K, &onDevice.K, keys * cfg.HeadDim, false},
		{&host.V, &onDevice.V, keys * cfg.HeadDimV, false}, {&host.DO, &onDevice.DO, rows * cfg.HeadDimV, false},
		{&host.O, &onDevice.O, rows * cfg.HeadDimV, true}, {&host.DQ, &onDevice.DQ, rows * cfg.HeadDim, true},
		{&host.DK, &onDevice.DK, keys * cfg.HeadDim, true}, {&host.DV, &onDevice.DV, keys * cfg.HeadDimV, true},
	} {
		values := make([]float32, x.n)
		for i := range values {
			values[i] = float32(random.NormFloat64())
			if x.output {
				values[i] = float32(math.NaN())
			}
		}
		x.host.Host = encode(cfg.DType, values)
		b, err := dev.NewBuffer(uint64(len(x.host.Host)+3)&^3, vk.BufferOptions{})
		require.NoError(t, err)
		defer func() { require.NoError(t, b.Close()) }()
		x.device.Buffer = b
		require.NoError(t, stream.Upload(b, 0, x.host.Host))
		if x.output {
			outputs = append(outputs, b)
		}
	}
	require.NoError(t, stream.Barrier())
	require.NoError(t, op.Forward(stream, onDevice.Args))
	require.NoError(t, stream.Barrier())
	require.NoError(t, op.Backward(stream, onDevice))
	require.NoError(t, stream.Barrier())
	got := [][]byte{host.O.Host, host.DQ.Host, host.DK.Host, host.DV.Host}
	results := make([][]float32, len(got))
	for i, b := range outputs {
		out := make([]byte, len(got[i]))
		require.NoError(t, stream.Download(context.Background(), out, b, 0))
		require.NoError(t, stream.Wait(context.Background()))
		results[i] = decode(cfg.DType, out)
	}
	cfg.Tier = attention.TierCPU
	o, lse, err := attention.Reference(cfg, host.Args)
	require.NoError(t, err)
	nearBy(t, "O", results[0], o, limit)
	rounded, stats := make([]float32, len(o)), make([]float32, len(lse))
	for i := range o {
		rounded[i] = float32(o[i])
	}
	for i := range lse {
		stats[i] = float32(lse[i])
	}
	host.O.Host, host.LSE.Host = encode(cfg.DType, rounded), encode(attention.F32, stats)
	g, err := attention.ReferenceBackward(cfg, host)
	require.NoError(t, err)
	nearBy(t, "dQ", results[1], g.DQ, 2*limit)
	nearBy(t, "dK", results[2], g.DK, 2*limit)
	nearBy(t, "dV", results[3], g.DV, 2*limit)
}

// Scores that no device holds are refused before memory is allocated.
func TestScoresThatDoNotFitAreOutOfMemory(t *testing.T) {
	dev := device(t)
	_, err := plain.New(dev, problem.Config{DType: attention.F32, Tier: attention.TierScalar, HeadDim: 16}, attention.Shape{B: 512, Hq: 64, Hkv: 64, Sq: 60000, Sk: 60000}, true)
	if !errors.Is(err, attention.ErrUnsupported) {
		require.ErrorIs(t, err, vk.ErrOutOfMemory)
	}
}

func TestOptionsAreRefusedByName(t *testing.T) {
	err := plain.Check(problem.Config{HeadDim: 16, Softcap: 30}, attention.Shape{B: 1, Hq: 1, Hkv: 1, Sq: 8, Sk: 8})
	require.ErrorIs(t, err, attention.ErrUnsupported)
	require.ErrorContains(t, err, "no other option")
}
