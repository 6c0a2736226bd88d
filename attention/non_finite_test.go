package attention_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/half"
	"vkattn/internal/testdevices"
)

// A NaN of V reaches O of every row that attends to its key and of no other, wherever the key
// lies in a tile: masked, unmasked, or the last unmasked one, which tiles with more registers
// than a device has (head dim 128) mask too.
func TestNaNOfEveryKeyReachesItsRows(t *testing.T) {
	const n, dim = 300, 128
	d := newBackwardDevice(t)
	for _, r := range attention.TierReport(d.dev) {
		if !r.Available || r.DType != attention.F16 || r.Tier == attention.TierCPU || r.Tier == attention.TierCUDA {
			continue
		}
		t.Run(r.Tier.String(), func(t *testing.T) {
			op := testdevices.Op(t, attention.On(d.dev), attention.Config{DType: attention.F16, HeadDim: dim, Causal: attention.TopLeft, Tier: r.Tier, Tuning: attention.TuningOff})
			for first := 0; first < n; first += dim { // key k has its NaN in column k % dim
				var a attention.BackwardArgs
				a.Shape = attention.Shape{B: 1, Hq: 1, Sq: n, Sk: n}
				tensor := func() attention.Tensor { return attention.Tensor{Host: make([]byte, 2*n*dim)} }
				a.Q, a.K, a.V, a.O = tensor(), tensor(), tensor(), tensor()
				a.DO, a.DQ, a.DK, a.DV = tensor(), tensor(), tensor(), tensor()
				a.LSE = attention.Tensor{Host: make([]byte, 4*n)}
				for k := first; k < min(first+dim, n); k++ {
					half.EncodeF16(a.V.Host[2*(k*dim+k%dim):], []float32{float32(math.NaN())})
				}
				u := d.upload(t, a)
				require.NoError(t, op.Forward(attention.OnStream(d.stream), u.Args))
				o := make([]byte, 2*n*dim)
				require.NoError(t, d.stream.Download(t.Context(), o, u.O.Buffer, 0))
				x := make([]float32, n*dim)
				half.DecodeF16(x, o)
				wrong := 0
				for i := range n {
					for c := range dim {
						k := first + c
						if want, got := k < n && k <= i, x[i*dim+c] != x[i*dim+c]; want != got {
							if wrong++; wrong < 5 {
								t.Errorf("O[%d][%d] is %v with the NaN of key %d", i, c, x[i*dim+c], k)
							}
						}
					}
				}
			}
		})
	}
}
