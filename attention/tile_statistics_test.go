package attention

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/internal/plan"
	"vkattn/internal/problem"
	"vkattn/internal/testdevice"
	"vkattn/internal/testlevel"
	"vkattn/vk"
)

var updateStatistics = flag.Bool("update-statistics", false, "write the table of testdata/statistics of the driver under test anew")

// tileStatistics is a line of testdata/statistics: what a driver's compiler says of a tile.
type tileStatistics struct {
	call   string // the key
	tile   string
	shared uint64 // bytes per workgroup
	stats  compilerStats
	waves  int // in flight at once, in the driver's own unit: waves counts them
}

// waves reads the number of subgroups in flight: RADV counts them per SIMD, NVK per SM, Turnip
// per core. Honeykrisp counts threads per core. ANV counts nothing of the kind: 0.
func waves(list []vk.Statistic) int {
	for _, x := range list {
		switch strings.ToLower(x.Name) {
		case "subgroups per simd", "max warps/sm", "max waves per core", "threads":
			return int(x.Value)
		}
	}
	return 0
}

const statisticsHeader = "# call | tile | registers | bytes spilled per invocation | shared bytes | waves\n"

func (t tileStatistics) String() string {
	return fmt.Sprintf("%s | %s | %d | %d | %d | %d\n", t.call, t.tile, t.stats.registers, t.stats.spills, t.shared, t.waves)
}

func readStatisticsTable(text string) (map[string]tileStatistics, error) {
	table := map[string]tileStatistics{}
	for line := range strings.Lines(strings.TrimPrefix(text, statisticsHeader)) {
		f := strings.Split(strings.TrimSpace(line), " | ")
		if len(f) != 6 {
			return nil, fmt.Errorf("%q has %d fields", line, len(f))
		}
		var n [4]int
		for i := range n {
			var err error
			if n[i], err = strconv.Atoi(f[2+i]); err != nil {
				return nil, err
			}
		}
		table[f[0]] = tileStatistics{f[0], f[1], uint64(n[2]), compilerStats{registers: n[0], spills: n[1]}, n[3]}
	}
	return table, nil
}

// worse says what a tile lost since the table was written, or "". Registers may move: a new
// compiler moves them everywhere.
func (t tileStatistics) worse(was tileStatistics) string {
	switch {
	case t.stats.spills > was.stats.spills:
		return fmt.Sprintf("%s: tile %s spills %d bytes an invocation; tile %s spilled %d", t.call, t.tile, t.stats.spills, was.tile, was.stats.spills)
	case t.waves < was.waves:
		return fmt.Sprintf("%s: tile %s leaves room for %d waves; tile %s for %d", t.call, t.tile, t.waves, was.tile, was.waves)
	}
	return ""
}

func TestStatisticsThatAreWorse(t *testing.T) {
	was := tileStatistics{"decode", "64x64", 4096, compilerStats{registers: 128, spills: 8}, 4}
	now := was
	now.stats.registers = 160
	require.Empty(t, now.worse(was))
	now.stats.spills = 12
	require.Contains(t, now.worse(was), "spills 12 bytes")
	now.stats.spills, now.waves = 0, 3
	require.Contains(t, now.worse(was), "3 waves")
	table, err := readStatisticsTable(statisticsHeader + was.String())
	require.NoError(t, err)
	require.Equal(t, map[string]tileStatistics{"decode": was}, table)
}

// The tiles that the heuristics choose spill no more, and leave room for no fewer waves, than
// testdata/statistics says. make test-platforms runs it on the null devices;
//
//	go test -exec "$PWD/scripts/run-with nvk-ada" ./attention -run TestTileStatistics -update-statistics
//
// writes a table.
func TestTileStatistics(t *testing.T) {
	if level := testlevel.Get(); !testdevice.Null() || level != testlevel.All && level != testlevel.Exhaustive {
		t.Skip("make test-platforms runs it, on null devices")
	}
	t.Setenv(vk.CacheDirEnv, t.TempDir())
	dev, err := vk.Open(vk.Options{Stats: true, PipelineCache: "off"})
	require.NoError(t, err)
	defer func() { require.NoError(t, dev.Close()) }()
	path := filepath.Join("testdata", "statistics", os.Getenv("VKATTN_DRIVER")+".txt")
	var lines []tileStatistics
	for _, r := range plan.TierReport(dev) {
		if r.Available && !r.Tier.WithoutSPIRV() && r.Tier != TierCPU && (r.Tier != TierScalar || r.DType == F16) {
			lines = append(lines, heuristicTiles(t, dev, r.Tier, r.DType)...)
		}
	}
	if *updateStatistics {
		var b strings.Builder
		b.WriteString(statisticsHeader)
		for _, l := range lines {
			b.WriteString(l.String())
		}
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(b.String()), 0o644))
		return
	}
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	table, err := readStatisticsTable(string(text))
	require.NoError(t, err)
	for _, l := range lines {
		was, known := table[l.call]
		if !known {
			t.Errorf("%s has no line of %s", path, l.call)
			continue
		}
		delete(table, l.call)
		if reason := l.worse(was); reason != "" {
			t.Error(reason)
		}
	}
	for call := range table {
		t.Errorf("%s has a line of %s, which no tier of the device computes", path, call)
	}
}

// heuristicTiles compiles the tiles that the heuristics choose on a tier: prefill, options,
// decode and gradients.
func heuristicTiles(t *testing.T, dev *vk.Device, tier Tier, dtype DType) (lines []tileStatistics) {
	prefill := Shape{B: 1, Hq: 16, Sq: 4096, Sk: 4096}
	decode := Shape{B: 1, Hq: 32, Hkv: 8, Sq: 1, Sk: 8192}
	for _, dim := range []int{64, 128, 256} {
		for _, c := range []struct {
			name  string
			cfg   Config
			shape Shape
		}{
			{"full", Config{}, prefill},
			{"causal", Config{Causal: BottomRight}, prefill},
			{"softcap", Config{Causal: BottomRight, Softcap: 30}, prefill},
			{"decode", Config{Causal: BottomRight}, decode},
			{"decode int8", Config{Causal: BottomRight, KeyType: KVInt8, ValueType: KVInt8}, decode},
		} {
			c.cfg.Tier, c.cfg.DType, c.cfg.HeadDim, c.cfg.Tuning = tier, dtype, dim, TuningOff
			op := newOp(dev, problem.Config(c.cfg), Experiment{}, nil)
			r := op.typical(c.shape)
			made, err := plan.Make(dev, problem.Config(c.cfg), r, nil)
			if errors.Is(err, ErrUnsupported) {
				continue
			}
			require.NoError(t, err)
			v := made.Variant
			shared, refusal := plan.Fits(dev.Caps(), v, r.Shape)
			require.Empty(t, refusal)
			p, err := op.pipelines.Of(dev, (*problem.Config)(&c.cfg), v)
			require.NoError(t, err)
			lines = append(lines, statisticsOf(t, dev, p, tileStatistics{call: fmt.Sprintf("%v %v d%d %s", tier, dtype, dim, c.name), tile: v.Describe(), shared: shared},
				v.Tile.LocalSize(), v.Tile.SubgroupSize()))
			closeAll(t, op)
		}
		cfg := Config{Tier: tier, DType: dtype, HeadDim: dim, Causal: BottomRight, Tuning: TuningOff}
		op := newOp(dev, problem.Config(cfg), Experiment{}, nil)
		r := op.typicalBackward(prefill)
		made, err := plan.MakeBackward(dev, (*problem.Config)(&cfg), &r, nil)
		if errors.Is(err, ErrUnsupported) {
			continue
		}
		require.NoError(t, err)
		for i := range made.Kernels {
			v := made.Kernels[i].Variant
			if !v.Tunes() {
				continue // it has no tile
			}
			p, err := op.backward.pipelines.Of(dev, (*problem.Config)(&cfg), v)
			require.NoError(t, err)
			local, subgroup := v.LocalSize()
			shared := plan.PruneBackward(dev.Caps(), v, r.Shape, 1)[0].Shared
			lines = append(lines, statisticsOf(t, dev, p, tileStatistics{call: fmt.Sprintf("%v %v d%d backward %s", tier, dtype, dim, made.Kernels[i].Outputs),
				tile: v.Describe(), shared: shared}, local, subgroup))
		}
		closeAll(t, op)
	}
	return lines
}

// statisticsOf fills in what the compiler says of a pipeline.
func statisticsOf(t *testing.T, dev *vk.Device, p *vk.Pipeline, s tileStatistics, local, subgroup uint32) tileStatistics {
	t.Helper()
	list, err := p.Statistics()
	require.NoError(t, err)
	for _, x := range list {
		t.Logf("%s: %s = %v", s.call, x.Name, x.Value)
	}
	if subgroup == 0 {
		subgroup = dev.Caps().SubgroupSize
	}
	s.stats, s.waves = readStats(list, s.shared, local, subgroup), waves(list)
	require.NotZero(t, s.stats.registers, "%s: %v", s.call, list)
	require.True(t, s.waves > 0 || strings.HasPrefix(os.Getenv("VKATTN_DRIVER"), "anv-"), "%s: %v", s.call, list)
	return s
}

func closeAll(t *testing.T, op *Op) {
	t.Helper()
	for _, p := range op.pipelines.All() {
		require.NoError(t, p.Close())
	}
	require.NoError(t, op.Close())
}
