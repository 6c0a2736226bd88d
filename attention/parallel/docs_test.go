package parallel

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/testlevel"
)

// The table of estimates in docs/several-gpus.md is what plans say.
func TestEstimatesOfTheDocs(t *testing.T) {
	testlevel.HostOnly(t)
	text, err := os.ReadFile("../../docs/several-gpus.md")
	require.NoError(t, err)
	cell := regexp.MustCompile(`^([0-9.]+) \(([0-9.]+)\)$`)
	rows := 0
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		keys, err := strconv.Atoi(strings.ReplaceAll(cells[0], ",", ""))
		if err != nil || len(cells) != 6 {
			continue
		}
		ranks, err := strconv.Atoi(cells[1])
		require.NoError(t, err)
		rows++
		for i, mode := range Modes() {
			found := cell.FindStringSubmatch(cells[2+i])
			if found == nil {
				continue
			}
			cfg := Config{Mode: mode, Machine: Machine{RanksPerHost: 8}}
			cfg.HeadDim, cfg.Causal = 128, attention.TopLeft
			op, err := New(ranksOf(t, ranks)[0], nil, cfg)
			require.NoError(t, err)
			p, err := op.Plan(Problem{Shape: attention.Shape{B: 1, Hq: 32, Hkv: 8, Sq: keys, Sk: keys}})
			require.NoError(t, err)
			for n, seconds := range []float64{p.Forward.Seconds, p.Forward.Exposed} {
				digits := 0
				if _, after, point := strings.Cut(found[1+n], "."); point {
					digits = len(after)
				}
				if found[1+n] == "0" {
					require.Less(t, seconds, 5e-6, "%v of %d ranks, %d keys", mode, ranks, keys)
					continue
				}
				require.Equal(t, found[1+n], strconv.FormatFloat(1e3*seconds, 'f', digits, 64), "%v of %d ranks, %d keys", mode, ranks, keys)
			}
		}
	}
	require.Equal(t, 10, rows)
}
