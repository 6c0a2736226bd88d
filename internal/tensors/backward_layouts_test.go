package tensors

import (
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/internal/problem"
)

// Offsets of rows and keys from the start of a tile are 32-bit numbers in the kernels. A stride that would let one of them
// wrap around is refused, for each tensor that a kernel addresses by tiles, and the largest that fits is not.
func TestStridesWithinATile(t *testing.T) {
	const rows, keys, size = 33, 65, 2
	seq := func(step int64) problem.Tensor {
		return problem.Tensor{Strides: problem.Strides{Batch: 1, Head: 1, Seq: step}}
	}
	a := problem.BackwardArgs{Args: problem.Args{Shape: problem.Shape{B: 1, Hq: 1, Sq: 2, Sk: 2}}}
	for _, x := range []struct {
		i     int
		field string
		most  int64
	}{
		{BackwardQ, "Q", (1<<32 - 2) / size / rows}, {BackwardDO, "DO", (1<<32 - 2) / size / rows}, {BackwardDQ, "DQ", (1<<32 - 2) / size / rows},
		{BackwardK, "K", (1<<32 - 1) / keys}, {BackwardV, "V", (1<<32 - 1) / keys},
		{BackwardDK, "DK", (1<<32 - 1) / keys}, {BackwardDV, "DV", (1<<32 - 1) / keys},
	} {
		check := func(step int64, tileKeys uint32) error {
			var l BackwardTensors
			tensor := seq(step)
			l.list[x.i].Set(x.field, &tensor, problem.F16, 1, 1, 2, 64)
			return l.CheckStrides(&a, rows, tileKeys)
		}
		require.NoError(t, check(x.most, keys), x.field)
		require.ErrorIs(t, check(x.most+1, keys), problem.ErrUnsupported, x.field)
		require.ErrorContains(t, check(x.most+1, keys), x.field+" has a row stride", x.field)
		if x.most == (1<<32-1)/keys {
			require.NoError(t, check(x.most+1, 0), "%s of kernels that compute the position of each key", x.field)
		}
	}
}
