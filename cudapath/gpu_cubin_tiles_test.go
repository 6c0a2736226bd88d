//go:build !windows

package cudapath

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"vkattn/vk"
)

// Compares tiles of tier cubin: the tables of the folders in VKATTN_CUBIN_TABLES, separated by
// colons. Every kernel is checked, then timed in turns with the same kernel of the other
// tables. VKATTN_CUBIN_LENGTHS are the lengths (default: 1024,2048,4096).
func TestCubinGPUTiles(t *testing.T) {
	folders := filepath.SplitList(os.Getenv("VKATTN_CUBIN_TABLES"))
	if len(folders) == 0 {
		t.Skip("VKATTN_CUBIN_TABLES names no tables")
	}
	lengths := []int{1024, 2048, 4096}
	if list := os.Getenv("VKATTN_CUBIN_LENGTHS"); list != "" {
		lengths = nil
		for _, x := range strings.Split(list, ",") {
			var n int
			_, err := fmt.Sscan(x, &n)
			require.NoError(t, err)
			lengths = append(lengths, n)
		}
	}
	d, s := needCubins(t)
	var tiles []cubinTiles
	for _, folder := range folders {
		table, err := readTable(os.DirFS(folder))
		require.NoError(t, err)
		tiles = append(tiles, cubinTiles{filepath.Base(folder), table})
	}
	for _, tile := range tiles {
		t.Run(tile.name, func(t *testing.T) { tile.check(t, d, s) })
	}
	for _, dim := range []int{64, 96, 128} {
		for _, length := range lengths {
			raceCubinTiles(t, d, s, tiles, dim, length)
		}
	}
}

// cubinTiles is a table to compare with others.
type cubinTiles struct {
	name string
	*table
}

// check compares with the reference: blocks of fewer rows, more row blocks than CTAs, rows
// that attend to no key, a negative scale.
func (x cubinTiles) check(t *testing.T, d *vk.Device, s *vk.Stream) {
	for _, c := range []cubinCase{
		{"", 2, 4, 2, 333, 517, 0, false, 0, false, 0.1},
		{"", 2, 4, 1, 517, 517, 0, true, 0, true, -0.1},
		{"", 1, 2, 2, 700, 300, 0, true, -400, true, 0.1},
		{"", 2, 40, 8, 389, 389, 0, false, 0, false, 0.1},
		{"", 2, 40, 8, 389, 389, 0, true, 0, false, 0.1},
		{"", 1, 1, 1, 1, 1, 0, true, 0, true, 0.1},
	} {
		for i := range x.cubins {
			k := &x.cubins[i]
			if k.Causal != c.causal {
				continue
			}
			c.dtype, c.d = k.DType, k.D
			r := newCubinRunOf(t, x.table, k, d, s, c, 3, nil)
			require.NoError(t, r.record(s))
			require.NoError(t, s.Barrier())
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			if err := s.Wait(ctx); err != nil { // nothing can be closed any more
				fmt.Printf("HANG %s %v: %v\n", x.name, c, err)
				os.Exit(3)
			}
			cancel()
			o, lse, bits := r.results(t, s)
			r.compare(t, o, lse, 3)
			require.NoError(t, r.record(s))
			require.NoError(t, s.Barrier())
			_, _, again := r.results(t, s)
			require.True(t, slices.Equal(bits, again), "other bits")
		}
	}
}

// raceCubinTiles times the kernels of a head dim, full and causal.
func raceCubinTiles(t *testing.T, d *vk.Device, s *vk.Stream, tiles []cubinTiles, dim, length int) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	c := cubinCase{"f16", max(1, min(16, 16*4096/length)), 8, 8, length, length, dim, false, 0, true, float32(1 / math.Sqrt(float64(dim)))}
	var runs []*cubinRun
	var names []string
	var buffers [5]*vk.Buffer
	for _, causal := range []bool{false, true} {
		for _, x := range tiles {
			c.causal = causal
			list, _ := x.cubin(cubinArch(), c.problem())
			if len(list) == 0 || list[0].D != dim {
				continue
			}
			k := list[0]
			if buffers[0] == nil {
				buffers = uploadCubinRace(t, d, s, c)
			}
			r := &cubinRun{c: c, kernel: k, f: loadCubin(t, x.table, d, k), buffers: buffers, launch: c.launch(d, k)}
			p := &r.params
			for i, to := range []*tensorParams{&p.q, &p.k, &p.v, &p.o} {
				*to = c.layout(buffers[i].Address(), c.hq, c.sq)
			}
			p.b, p.hq, p.hkv, p.sq, p.sk, p.d, p.dv = int32(c.batch), int32(c.hq), int32(c.hkv), int32(c.sq), int32(c.sk), int32(dim), int32(dim)
			p.setScale(c.scale)
			require.NoError(t, p.setMaps(k))
			runs, names = append(runs, r), append(names, x.name)
		}
	}
	defer func() {
		for _, b := range buffers {
			if b != nil {
				require.NoError(t, b.Close())
			}
		}
	}()
	const samples = 9
	launches := max(1, 3*4096/length)
	times := make([][]time.Duration, len(runs))
	for start, warm := time.Now(), true; warm || len(times[len(runs)-1]) < samples; {
		for i, r := range runs {
			begin, err := s.Timestamp()
			require.NoError(t, err)
			for range launches {
				require.NoError(t, r.record(s))
				require.NoError(t, s.Barrier())
			}
			end, err := s.Timestamp()
			require.NoError(t, err)
			require.NoError(t, s.Wait(ctx))
			took, err := s.Elapsed(begin, end)
			require.NoError(t, err)
			if !warm {
				times[i] = append(times[i], took/time.Duration(launches))
			}
		}
		if len(runs) == 0 {
			return
		}
		warm = warm && time.Since(start) < 400*time.Millisecond
	}
	for i, r := range runs {
		slices.Sort(times[i])
		pairs := float64(length) * float64(length)
		if r.c.causal {
			pairs = float64(length) * float64(length+1) / 2
		}
		flop := 4 * float64(c.batch*c.hq*dim) * pairs
		fmt.Printf("TIME d%d %d causal=%v %-28s %9.1f us %6.1f TFLOP/s (%.1f to %.1f us)\n", dim, length, r.c.causal, names[i],
			float64(times[i][samples/2])/1e3, flop/times[i][samples/2].Seconds()/1e12, float64(times[i][0])/1e3, float64(times[i][samples-1])/1e3)
	}
}

// uploadCubinRace fills Q, K and V with repetitions of a million random numbers.
func uploadCubinRace(t *testing.T, d *vk.Device, s *vk.Stream, c cubinCase) (buffers [5]*vk.Buffer) {
	values := make([]float32, 1<<20+8)
	bytes := 2 * c.batch * c.hq * c.sq * c.d
	for i := range buffers {
		var err error
		buffers[i], err = d.NewBuffer(uint64(bytes), vk.BufferOptions{})
		require.NoError(t, err)
		if i >= 3 {
			continue
		}
		random := rand.New(rand.NewPCG(uint64(i), 22))
		for j := range values {
			values[j] = float32(random.NormFloat64())
		}
		stored := c.encode(values)
		for at := 0; at < bytes; at += len(stored) {
			require.NoError(t, s.Upload(buffers[i], uint64(at), stored[:min(len(stored), bytes-at)]))
		}
	}
	require.NoError(t, s.Barrier())
	return buffers
}
