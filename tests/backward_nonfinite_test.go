package tests

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/cases"
)

// randomNonFinite draws a composition that has gradients, with NaN among Q, K and V, Inf
// among V, and otherwise ordinary numbers.
func randomNonFinite(r *rand.Rand, tt cases.Target) cases.Case {
	for {
		c := cases.RandomExtreme(r.Uint64()>>16, r.IntN(4), attention.KVSame, tt.DType)
		c.Data, c.Scale, c.Extremes = cases.Uniform, attention.Scale{}, cases.Extremes{NonFinite: true, FiniteScores: true}
		if c.Softcap != 0 {
			c.Softcap = 30
		}
		// Whether a key of weight 0 spoils a gradient is not defined: no far keys, and no biases of -Inf.
		c.ALiBi, c.Bias, c.FixedSplit = false, cases.BiasKind{}, 0
		if c.HasGradients() && hasBackwardKernels(c, tt) && c.D+c.Dv <= 256 {
			return c
		}
	}
}

// NaN in Q and K, and Inf and NaN in V, reach the gradients of the rows and keys that they have a part
// in, and no others, whatever the options. With VKATTN_SOAK_SECONDS the test draws for as
// long as that, from VKATTN_SOAK_SEED.
func TestBackwardNonFinite(t *testing.T) {
	s := openTiers(t)
	seed, seconds := briefSeed(t), 0
	if text := os.Getenv(soakSecondsEnv); text != "" {
		var err error
		seconds, err = strconv.Atoi(text)
		require.NoError(t, err, soakSecondsEnv)
	}
	until := time.Now().Add(time.Duration(seconds) * time.Second)
	for _, tt := range s.available() {
		if !computesGradients(tt.Tier) || slowToCompile(tt) && tt.DType != attention.F16 || leftToGPUs(tt) {
			continue
		}
		t.Run(tt.String(), func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(seed, uint64(tt.Tier)*8+uint64(tt.DType)))
			draws := 40
			if tt.Tier != attention.TierCPU && fewPipelines() {
				draws = 2 // a driver on the CPU compiles six pipelines for each
			}
			for i := 0; i < draws || time.Now().Before(until); i += 4 {
				var list []cases.Case
				for range min(4, max(draws-i, 1)) {
					list = append(list, s.withAccess(randomNonFinite(r, tt)))
				}
				runBackward(t, s, tt, list)
			}
		})
	}
}
