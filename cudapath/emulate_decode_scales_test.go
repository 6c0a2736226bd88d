//go:build !windows

package cudapath

import (
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/cases"
	"vkattn/internal/problem"
	"vkattn/internal/testlevel"
)

// The decode kernels read a scale that the keys of a head, or all keys, share.
func TestDecodeKernelsShareScalesOnTheCPU(t *testing.T) {
	testlevel.HostOnly(t)
	table, err := embedded()
	require.NoError(t, err)
	const d, dtype = 64, attention.BF16
	e := newDecodeEmulator(t, table.decodes, dtype.String(), d, nil)
	two := []cases.Seq{{ID: 1, Rows: 1, Keys: 123}, {ID: 2, Rows: 1, Keys: 90}}
	for _, kv := range decodeTypes {
		if !kv.Scaled() {
			continue
		}
		k, why := decodeKernel(table.decodes, "sm_90a", dtype.String(), kv.String(), d, d)
		require.Empty(t, why)
		for _, c := range []cases.Case{
			{Name: "tensor", Seqs: two, LooseK: true, KVBlock: problem.KVBlockTensor},
			{Name: "head", Seqs: two[:1], KVBlock: problem.KVBlockHead},
			{Name: "head, pages", Seqs: two, PageSize: 16, KVBlock: problem.KVBlockHead},
			{Name: "head, packed", Seqs: two, PackedQ: true, PackedK: true, KVBlock: problem.KVBlockHead},
		} {
			c.D, c.Dv, c.KeyType, c.LSE, c.Shape = d, d, kv, true, attention.Shape{Hq: 4, Hkv: 2}
			p, err := cases.NewProblem(c, dtype)
			require.NoError(t, err)
			require.NoError(t, conformDecode(e, k, p, 2), "%v, %s", kv, c.Name)
		}
	}
}
