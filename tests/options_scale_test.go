package tests

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/inputs"
)

// scalesOfAnySize are consecutive scales of V: small before large ones, zero, negative
// ones, some that count as zero, and two that are not finite.
var scalesOfAnySize = []float64{
	0x1p-18, 0x1p-20, 1, 0, -3, 0x1p-17, 1e-30, 1e-40, 0x1p8, 0.3, -0x1p-12, 100, math.Inf(-1), math.NaN(),
}

// A row is exact in the keys that it sees, whatever the scales of other keys are. First
// each row sees its own key and the one before, then all keys before.
func TestOptionsScalesOfAnySize(t *testing.T) {
	s := openTiers(t)
	const d = 32 // few columns compile quickly
	types := []attention.KVType{attention.KVInt8, attention.KVFP8, attention.KVFP8E5M2}
	for _, tt := range s.available() {
		if fewPipelines() && tt.DType != attention.F16 {
			continue // scales do not depend on the type
		}
		for n, rows := range []int{len(scalesOfAnySize), 5 * len(scalesOfAnySize)} { // with the decode kernel, and without
			for i, kv := range types {
				if fewPipelines() && slowToCompile(tt) && (i != n || (tt.Tier == attention.TierCoopMat2) != (n == 0)) {
					continue // the decode kernel for int8, the general one for float8
				}
				for _, left := range []int{1, rows} {
					name := fmt.Sprintf("%v/%d rows/all before", kv, rows)
					if left == 1 {
						name = fmt.Sprintf("%v/%d rows/neighbours", kv, rows)
					}
					t.Run(tt.String()+"/"+name, func(t *testing.T) {
						t.Parallel()
						window := attention.WindowOf(left, 0)
						cfg := attention.Config{DType: tt.DType, HeadDim: d, KeyType: kv, ValueType: kv, Tier: tt.Tier, Tuning: attention.TuningOff,
							Causal: attention.TopLeft, Window: window}
						images := make([][]byte, rawPieces)
						images[rawQ] = inputs.New(int64(rows*d), tt.DType, inputs.Normal, 1)
						images[rawK], images[rawV] = anyBytes(kv, rows*d, 2), anyBytes(kv, rows*d, 3)
						images[rawO] = make([]byte, rows*d*tt.DType.Size())
						images[rawKScale], images[rawVScale] = make([]byte, 4*rows), make([]byte, 4*rows)
						scaleOf := func(key int) float64 { return scalesOfAnySize[key*len(scalesOfAnySize)/rows] }
						for key := range rows {
							binary.LittleEndian.PutUint32(images[rawKScale][4*key:], math.Float32bits(0.01))
							binary.LittleEndian.PutUint32(images[rawVScale][4*key:], math.Float32bits(float32(scaleOf(key))))
						}
						p := raw{name, attention.Shape{B: 1, Hq: 1, Sq: rows, Sk: rows}, true}
						want, _, err := attention.Reference(cfg, p.HostArgs(images))
						require.NoError(t, err)
						e := s.newEngine(tt)
						j := &job{Problem: p, cfg: cfg, before: images}
						require.NoError(t, e.run([]*job{j}))
						require.NoError(t, e.close())
						unit := map[attention.DType]float64{attention.F16: 0x1p-10, attention.BF16: 0x1p-7, attention.F32: 0x1p-18}[tt.DType]
						for i, got := range widened(j.after[rawO], tt.DType) {
							row := i / d
							most := 0.0
							for key := max(row-left, 0); key <= row; key++ {
								if x := math.Abs(scaleOf(key)); x < math.Inf(1) {
									most = max(most, x*127)
								}
							}
							x := float64(got)
							same := math.Abs(x-want[i]) <= unit*most+0x1p-24 || math.IsNaN(x) && math.IsNaN(want[i]) || x == want[i]
							require.Truef(t, same, "row %d, column %d: %v, want %v, within %v", row, i%d, x, want[i], unit*most)
						}
					})
				}
			}
		}
	}
}

// anyBytes returns numbers of int8, or of float8 up to 120.
func anyBytes(kv attention.KVType, n int, seed uint64) []byte {
	most := uint(0x70)
	if kv == attention.KVFP8E5M2 {
		most = 0x58
	}
	r := rand.New(rand.NewPCG(seed, 0))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.UintN(most)) | byte(r.UintN(2))<<7 // of int8 -128 to 111
	}
	return b
}
