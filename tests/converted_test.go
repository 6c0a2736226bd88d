package tests

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/cases"
	"vkattn/internal/half"
	"vkattn/internal/testlevel"
)

// TestConvertedKV runs calls of the tables of options on quantized K and V as TestOptionsConformance does, with K and V converted
// in front of the kernel: by time the calls of the tables have too few rows. Level all has every option with one of the types.
func TestConvertedKV(t *testing.T) {
	conformToTable(t, func(s *session) []cases.Target {
		return slices.DeleteFunc(s.available(), func(tt cases.Target) bool { return tt.DType == attention.F32 || tt.Tier == attention.TierCPU })
	}, convertedOf, attention.Experiment{ConvertKV: 1})
}

// convertedOf returns the cases of a tier whose K and V are converted. At level all those that are not quantized take the types in
// turn.
func convertedOf(s *session, tt cases.Target) (list []cases.Case) {
	types := slices.DeleteFunc(attention.KVTypes(), func(kv attention.KVType) bool {
		return kv == attention.KVSame || kv.Latent() || kv.Scaled() && tt.DType == attention.F16
	})
	all := slices.Contains([]testlevel.Level{testlevel.All, testlevel.Exhaustive}, testlevel.Get())
	for i, c := range optionTable(tt) {
		if c.KeyType == attention.KVSame && all {
			c.KeyType = types[i%len(types)]
		}
		switch {
		case c.KeyType == attention.KVSame, c.Dropout != 0, c.SparseRatio != 0, c.BlockQ != 0, c.VInK, c.FixedSplit != 0, c.D%8 != 0, c.Dv%8 != 0,
			c.KeyType.Blocked() && (c.D%32 != 0 || c.Dv%32 != 0), c.KeyType.Latent(), c.KeyType.Scaled() && tt.DType == attention.F16:
		default:
			list = append(list, c)
		}
	}
	return s.levelShareOf(tt, list)
}

// Attention to a single key of blocks returns its numbers times their scale, whatever the scale: rounded to nearest even, also to
// subnormal numbers and to Inf.
func TestConvertedNumbersAreRounded(t *testing.T) {
	s := openDevice(t)
	const sequences, dim, blocks, bytes = 1024, 64, 2, 34
	random := rand.New(rand.NewPCG(7, 8))
	v, want := make([]byte, sequences*blocks*bytes), make([]float32, sequences*dim)
	for i := range sequences * blocks {
		scale := uint16(i * (1 << 16 / (sequences * blocks))) // each exponent and both signs
		if scale&0x7c00 != 0x7c00 {
			scale |= uint16(random.IntN(1 << 5))
		}
		block := v[i*bytes:][:bytes]
		binary.LittleEndian.PutUint16(block, scale)
		for e := range 32 {
			block[2+e] = byte(random.IntN(256))
			want[i*32+e] = half.F16ToFloat32(scale) * float32(int8(block[2+e])) // exact
		}
	}
	for _, tt := range []cases.Target{cases.On(attention.TierScalar, attention.F16), cases.On(attention.TierScalar, attention.BF16)} {
		images := make([][]byte, rawPieces)
		images[rawQ], images[rawO] = make([]byte, sequences*dim*2), make([]byte, sequences*dim*2)
		images[rawK], images[rawV] = make([]byte, len(v)), v
		images[rawKScale], images[rawVScale] = make([]byte, 4), make([]byte, 4) // not read
		e := s.newEngine(tt)
		e.experiment.ConvertKV = 1
		j := &job{Problem: raw{"blocks", attention.Shape{B: sequences, Hq: 1, Sq: 1, Sk: 1}, false}, before: images,
			cfg: attention.Config{DType: tt.DType, HeadDim: dim, KeyType: attention.KVQ8_0, ValueType: attention.KVQ8_0, Tier: tt.Tier, Tuning: attention.TuningOff}}
		plan, err := e.plan(j)
		require.NoError(t, err)
		require.Contains(t, strings.Join(plan.Notes, " "), "in front of the kernel")
		require.NoError(t, e.run([]*job{j}))
		require.NoError(t, e.close())
		for i, got := range widened(j.after[rawO], tt.DType) {
			if math.IsNaN(float64(want[i])) {
				require.True(t, math.IsNaN(float64(got)), "%v: number %d is %v", tt, i, got)
			} else {
				require.Equal(t, rounded(want[i], tt.DType), got, "%v: number %d, %g", tt, i, want[i])
			}
		}
	}
}
