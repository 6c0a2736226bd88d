package main

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/vk/hostmem"
)

// Plain attention is a row beside each tier: verified, timed, with the memory of its scores
// and the tier's speed relative to it. Where the scores do not fit it is an OOM row, and the
// run goes on.
func TestPlainAttentionIsARowBesideTheTier(t *testing.T) {
	driver(t)
	const large = 1024
	run := func(lengths, memory string) (rows []bench.Row) {
		t.Helper()
		t.Setenv(hostmem.Variable, memory)
		_, stdout, stderr := call(tiny("--tier", "scalar", "--seqlen", lengths, "--against", "plain", "-o", "json")...)
		var doc struct{ Rows []bench.Row }
		require.NoError(t, json.Unmarshal([]byte(stdout), &doc), stderr)
		return doc.Rows
	}
	scores := func(r *bench.Row) uint64 { return 2 * 4 * uint64(r.Sq) * uint64(r.Sk) } // 2 heads, 4 bytes
	// What the tier's row needs, from its refusal. The scores need more.
	refused := run(strconv.Itoa(large), "1KiB")[0]
	require.Equal(t, bench.OOM, refused.Status)
	found := regexp.MustCompile(`needs (\d+) bytes`).FindStringSubmatch(refused.Reason)
	require.Len(t, found, 2, refused.Reason)
	rows := run(fmt.Sprintf("65,%d,33", large), found[1])
	require.Len(t, rows, 6)
	for i := 0; i < len(rows); i += 2 {
		tier, plain := rows[i], rows[i+1]
		require.Equal(t, bench.OK, tier.Status, tier.Reason)
		require.Equal(t, bench.BaselinePlain, plain.Baseline)
		require.GreaterOrEqual(t, plain.Memory-tier.Memory, scores(&plain))
		require.Less(t, plain.Memory-tier.Memory, scores(&plain)+1<<16, "scores, and little else")
		if plain.Sq == large {
			require.Equal(t, bench.OOM, plain.Status)
			require.Regexp(t, `needs \d+ bytes of host memory`, plain.Reason)
			require.Empty(t, tier.Versus)
			continue
		}
		require.Equal(t, bench.OK, plain.Status, plain.Reason)
		require.NotNil(t, plain.Checked, "compared with the reference")
		require.InEpsilon(t, plain.Ms.Median/tier.Ms.Median, tier.Versus[string(bench.BaselinePlain)], 1e-9)
	}
}
