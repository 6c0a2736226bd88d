package plan

import (
	"bufio"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/internal/problem"
	"vkattn/vk"
)

// measuredTile is a line of testdata/tiles_h200.txt.
type measuredTile struct {
	tier      problem.Tier
	cfg       problem.Config
	length    int
	tflops    float64
	tile      coopmatTile // without fragment and DvSlice
	subgroups uint32
	registers int
	spilled   int
	shared    uint64
}

// measuredCaps returns the capabilities of the device that was measured.
func measuredCaps() *vk.Caps {
	caps := h200Caps()
	caps.ShaderCores = 132
	narrow := caps.CoopMatShapes[0]
	narrow.N = 8
	caps.CoopMatShapes = append(caps.CoopMatShapes, narrow)
	return caps
}

// problem describes the problem that was measured.
func (m *measuredTile) problem() string {
	return fmt.Sprintf("%v %v %v", m.tier, m.cfg, m.length)
}

// on returns the tile as a variant for a device, and the request.
func (m *measuredTile) on(t testing.TB, caps *vk.Caps) (Variant, Request) {
	heads := 128
	if m.cfg.HeadDim >= 192 {
		heads = 64
	}
	v, r := tuneProblem(t, caps, m.cfg, m.tier, problem.Shape{B: 1, Hq: heads, Sq: m.length, Sk: m.length})
	x := v.Tile.(coopmatTile)
	x.Subgroups, x.MFrags, x.KVTile = m.subgroups, m.tile.MFrags, m.tile.KVTile
	x.KVStep, x.QSmemChunks, x.DvSlice = m.tile.KVStep, m.tile.QSmemChunks, v.headDimV
	v.Tile = x
	return v, r
}

func measuredTiles(t testing.TB) []measuredTile {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", "tiles_h200.txt"))
	require.NoError(t, err)
	defer f.Close()
	var all []measuredTile
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if strings.HasPrefix(lines.Text(), "#") {
			continue
		}
		var m measuredTile
		var tier, dtype, mask string
		_, err := fmt.Sscan(lines.Text(), &tier, &dtype, &m.cfg.HeadDim, &m.length, &mask, &m.tflops,
			&m.subgroups, &m.tile.MFrags, &m.tile.KVTile, &m.tile.KVStep, &m.tile.QSmemChunks,
			&m.registers, &m.spilled, &m.shared)
		require.NoError(t, err, lines.Text())
		require.NoError(t, m.tier.UnmarshalText([]byte(tier)))
		require.NoError(t, m.cfg.DType.UnmarshalText([]byte(dtype)))
		if mask == "causal" {
			m.cfg.Causal = problem.TopLeft
		}
		all = append(all, m)
	}
	require.Greater(t, len(all), 80)
	return all
}

// The estimate of registers is within 15 % of the compiler's count, on average within 4 %,
// and it is above 245 for tiles that spill.
func TestEstimatedRegistersAreNearTheMeasured(t *testing.T) {
	var sum float64
	list := measuredTiles(t)
	for _, m := range list {
		v, _ := m.on(t, measuredCaps())
		there := min(registersEach, registerFile/int(v.Tile.LocalSize())&^7)
		estimate := v.Tile.(tunable).registers(&v)
		if m.registers == registersEach && m.spilled > 0 {
			require.Greater(t, estimate, 245, "%v %v spills", m.problem(), v.Tile)
		}
		off := math.Abs(float64(min(estimate, there))/float64(m.registers) - 1)
		require.Less(t, off, 0.15, "%v %v: %d, measured %d", m.problem(), v.Tile, estimate, m.registers)
		sum += off
	}
	require.Less(t, sum/float64(len(list)), 0.04)
}

// The estimate of cost is proportional to time: for tiles that spill little it is within
// 17 %, and it orders nine in ten pairs correctly.
func TestEstimatedTimesAreNearTheMeasured(t *testing.T) {
	type timed struct{ measured, estimate float64 }
	problems := map[string][]timed{}
	for _, m := range measuredTiles(t) {
		v, r := m.on(t, measuredCaps())
		if m.spilled > SpillSlack {
			continue
		}
		const clock = 1.98e9
		shared, err := v.sharedBytes()
		require.NoError(t, err)
		// The driver adds what it spills. The row maxima, a float for each row, lay in the scratch when this was measured.
		require.LessOrEqual(t, shared, m.shared+4*uint64(v.Tile.Rows()), "%v %v", m.problem(), v.Tile)
		x := timed{measured: float64(Flops(m.cfg, r.Shape)) / m.tflops / 1e12, estimate: v.cost(v.Tile.(tunable), measuredCaps(), r.Shape) / 132 / clock}
		require.InEpsilon(t, x.measured, x.estimate, 0.17, "%v %v", m.problem(), v.Tile)
		problems[m.problem()] = append(problems[m.problem()], x)
	}
	right, pairs := 0, 0
	for _, list := range problems {
		for i, a := range list {
			for _, b := range list[:i] {
				if max(a.measured, b.measured) < 1.03*min(a.measured, b.measured) {
					continue // equal within the error of both
				}
				pairs++
				if (a.measured < b.measured) == (a.estimate < b.estimate) {
					right++
				}
			}
		}
	}
	require.Greater(t, pairs, 60)
	require.Greater(t, float64(right)/float64(pairs), 0.9, "%d of %d pairs in the right order", right, pairs)
}

// By estimates alone, the best tiles are tried and the poor ones are not. The search starts
// from another tile.
func TestPruningKeepsWhatMeasuredWell(t *testing.T) {
	list := measuredTiles(t)
	best, tried := map[string]float64{}, map[string][]Option{}
	for _, m := range list {
		key := m.problem()
		best[key] = max(best[key], m.tflops)
		if tried[key] != nil {
			continue
		}
		v, r := m.on(t, measuredCaps())
		x := v.Tile.(coopmatTile)
		x.Subgroups, x.MFrags, x.KVTile, x.KVStep, x.QSmemChunks = 2, 1, 16, 16, 0
		v.Tile = x
		all := Prune(measuredCaps(), v, r, TuneCandidates)
		require.True(t, all[0].Heuristic)
		require.Equal(t, v.Tile, all[0].V.Tile)
		tried[key] = slices.DeleteFunc(all, func(o Option) bool { return o.Out != "" })
		require.LessOrEqual(t, len(tried[key]), TuneCandidates)
	}
	poor, poorTried := 0, 0
	for _, m := range list {
		v, _ := m.on(t, measuredCaps())
		in := slices.ContainsFunc(tried[m.problem()], func(o Option) bool { return o.V.Tile == v.Tile })
		switch share := m.tflops / best[m.problem()]; {
		case share > 0.97:
			require.True(t, in, "%v %v: %.3f of the best", m.problem(), v.Tile, share)
		case share < 0.8 || m.spilled > SpillSlack:
			poor++
			if in {
				poorTried++
			}
		}
	}
	require.Greater(t, poor, 5)
	require.Zero(t, poorTried, "of %d", poor)
}

// Every tuning starts with pruning, which judges thousands of tiles. It reads the SPIR-V, nearly all of its
// work, for few of them.
func TestPruningReadsTheSPIRVOfFewTiles(t *testing.T) {
	v, r := tuneProblem(t, measuredCaps(), problem.Config{HeadDim: 128}, problem.TierCoopMat2, large)
	known := sharedMemory.bytes
	sharedMemory.bytes = nil
	defer func() { sharedMemory.bytes = known }()
	all := Prune(measuredCaps(), v, r, TuneCandidates)
	require.Greater(t, len(all), 1000)
	require.Less(t, len(all), 20_000)
	require.GreaterOrEqual(t, len(sharedMemory.bytes), TuneCandidates, "those of the tiles that are left")
	require.LessOrEqual(t, len(sharedMemory.bytes), 2*TuneCandidates)
}
