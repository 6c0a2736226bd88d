//go:build !windows

package cudapath

import (
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
)

// A kernel may keep a row's maximum of earlier keys for a while and give a later
// key that decides the row a weight above 1. Rounding that weight to 16 bits
// would show in O whole, and alike in every row: O is divided by the sum of
// weights before that.
func TestGPUKeyThatDecidesLate(t *testing.T) {
	c := needGPU(t)
	s := newVulkanStream(t, c)
	const late = 300 // in no kernel's first step
	const ln2 = 0.693147180559945
	shape := attention.Shape{B: 1, Hq: 7, Hkv: 7, Sq: 70, Sk: 330}
	for _, family := range []string{"fa2", "fa3"} {
		for _, dtype := range []attention.DType{attention.F16, attention.BF16} {
			for _, causal := range []attention.Causal{attention.CausalNone, attention.BottomRight} {
				for _, dim := range []int{32, 64, 96, 128, 192, 256} {
					cfg := attention.Config{DType: dtype, HeadDim: dim, Scale: attention.ScaleOf(ln2), Causal: causal, Tier: attention.TierCUDA, Kernel: family}
					op, err := attention.New(attention.On(c.dev), cfg)
					if err != nil {
						require.ErrorIs(t, err, attention.ErrUnsupported)
						continue
					}
					shape := shape
					if causal != attention.CausalNone {
						shape.Sq = shape.Sk - late // every row attends to the late key
					}
					p := newProblem(t, c, s, cfg, shape)
					q, k := lateKey(shape, dim, late, dtype)
					for _, x := range []struct {
						tensor *attention.Tensor
						host   []byte
						data   []float32
					}{{&p.device.Q, p.host.Q.Host, q}, {&p.device.K, p.host.K.Host, k}} {
						dtype.Encode(x.host, x.data)
						require.NoError(t, s.Upload(x.tensor.Buffer, 0, x.host))
					}
					p.run(t, op, s)
				}
			}
		}
	}
}

// lateKey returns packed Q and K. In head h key `late` has a score slightly above h + 1 in
// units of ln 2, key 0 has score 0, and the scores of the other keys are too low to
// matter. The excess moves the late key's weight, relative to key 0, 0.4 units in the last
// place away from a number of the storage type.
func lateKey(s attention.Shape, dim, late int, dtype attention.DType) (q, k []float32) {
	little := float32(0.4 * 0x1p-10 * 1.4427) // log2(1 + 0.4 units of f16)
	if dtype == attention.BF16 {
		little = 0.4 * 0x1p-7 * 1.4427
	}
	q = make([]float32, int(s.Rows())*dim)
	for i := 0; i < len(q); i += dim {
		q[i], q[i+1] = 1, 1
	}
	k = make([]float32, s.B*s.KVHeads()*s.Sk*dim)
	for i := 0; i < len(k); i += dim {
		switch head, key := i/dim/s.Sk, i/dim%s.Sk; key {
		case 0:
		case late:
			k[i], k[i+1] = float32(head+1), little
		default:
			k[i] = -60
		}
	}
	return q, k
}
