package plan

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/internal/arith"
	"vkattn/internal/problem"
	"vkattn/vk"
)

// splitsByTrying is the definition of Splitting.Of: the smallest number with the least time.
func splitsByTrying(s *Splitting, keys int) int {
	cost := func(n int) uint64 {
		return arith.CeilDiv64(s.groups*uint64(n), s.resident) * (arith.CeilDiv64(uint64(keys), uint64(n)) + splitCost)
	}
	best := 1
	for n := 2; s.groups < fullRounds*s.resident && n <= min(max(1, keys/s.least), problem.MaxStates); n++ {
		if cost(n) < cost(best) {
			best = n
		}
	}
	return best
}

func TestSplitsAreTheFewestOfTheLeastTime(t *testing.T) {
	var r Request
	check := func(s Splitting, keys int) {
		r.Shape.Sk = keys
		require.Equal(t, splitsByTrying(&s, keys), s.Of(&r), "%+v %d keys", s, keys)
	}
	for groups := uint64(1); groups < 40; groups++ {
		for resident := uint64(1); resident < 40; resident++ {
			for _, keys := range []int{1, 127, 128, 129, 255, 256, 1000, 4096, 40000} {
				check(Splitting{groups: groups, resident: resident, least: 128}, keys)
			}
		}
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range 20000 {
		check(Splitting{groups: 1 + random.Uint64N(1500), resident: 16 + random.Uint64N(1100),
			least: minSplitKeys >> random.IntN(2)}, 1+random.IntN(1<<(4+random.IntN(17))))
	}
}

// Requests that differ in Sk alone have one kernel and tile in the range of Sk that a plan tells.
func TestPlansAreTheSameInTheirRange(t *testing.T) {
	caps := h200Caps()
	caps.ShaderCores, caps.Limits.MaxPushConstantBytes = 132, 256
	caps.CoopMatShapes = append(caps.CoopMatShapes, vk.CoopMatShape{
		M: 16, N: 8, K: 16, A: vk.Float16, B: vk.Float16, C: vk.Float32, Result: vk.Float32, Scope: vk.ScopeSubgroup})
	type choice struct {
		keys      KeyRange
		kernel    Variant
		reason    string
		splitting Splitting
		class     string
	}
	of := func(cfg problem.Config, r Request, sk int) choice {
		r.Shape.Sk = sk
		c := choice{keys: KeyRange{1, math.MaxInt}}
		r.seen = &c.keys
		if r.usesDecodeKernel(cfg.FixedSplit > 0) {
			r.operands = operandsInRegisters
		}
		var shared uint64
		c.kernel, shared, c.reason = chooseVariant(caps, cfg, problem.TierCoopMat2, r)
		if !c.kernel.Options.Any() {
			r.seeClass(cfg.Causal)
			c.class = ClassOf(c.kernel, cfg, r.Shape)
		} else if c.reason == "" {
			c.splitting = splittingOf(caps, &cfg, &c.kernel, &r, shared)
		}
		return c
	}
	random, lengths := rand.New(rand.NewPCG(3, 4)), map[int]bool{}
	for range 400 {
		cfg := problem.Config{HeadDim: []int{32, 64, 96, 128, 192, 256}[random.IntN(6)], Causal: problem.Causal(random.IntN(3))}
		s := problem.Shape{B: 1 << random.IntN(6), Hq: 8 << random.IntN(3), Hkv: 8, Sq: []int{1, 2, 5, 16, 17, 300, 1024}[random.IntN(7)]}
		r := Request{Shape: s, Access: problem.AccessAddresses, Align: [4]uint32{8, 8, 8, 8}}
		switch random.IntN(4) {
		case 0:
			r.Options.pageSize = 16
		case 1:
			r.Options.sparseTokens, r.SparseTokens = sparseLists, 640
		}
		var seen []choice
		sks := []int{1, 2, 255, 256, 257, 511, 512, 1279, 1280, 4095, 4096, 8192, 8193, s.Sq, s.Sq + 1, max(s.Sq-1, 1)}
		for range 150 {
			sks = append(sks, 1+random.IntN(1<<(2+random.IntN(14))))
		}
		for _, sk := range sks {
			c, name := of(cfg, r, sk), fmt.Sprintf("%v %+v %d", cfg, r.Shape, sk)
			require.True(t, c.keys.Holds(sk), name)
			lengths[sk] = true
			if i := slices.IndexFunc(seen, func(x choice) bool { return x.keys.Holds(sk) }); i < 0 {
				seen = append(seen, c)
			} else {
				require.Equal(t, seen[i], c, name)
			}
		}
	}
	require.Greater(t, len(lengths), 1000)
}

func BenchmarkSplitting(b *testing.B) {
	s := Splitting{groups: 64, resident: 264, least: 128}
	var r Request
	for b.Loop() {
		r.Shape.Sk = r.Shape.Sk%100_000 + 1
		s.Of(&r)
	}
}

// Neighbouring lengths have one Sk that stands for them, within an eighth, and it alone decides the tier.
func TestNeighbouringLengthsShareATier(t *testing.T) {
	of := func(sk int) (int, KeyRange) {
		seen := KeyRange{1, math.MaxInt}
		r := Request{Shape: problem.Shape{Sk: sk}, seen: &seen}
		o := r.seeOctant()
		return o.Shape.Sk, seen
	}
	for sk := 1; sk < 5000; sk++ {
		stands, keys := of(sk)
		require.True(t, keys.Holds(sk), "%d: %v", sk, keys)
		require.LessOrEqual(t, 16*max(sk-stands, stands-sk), 16*sk/8, "%d", sk)
		for _, other := range []int{keys.From, keys.Below - 1} {
			same, _ := of(other)
			require.Equal(t, stands, same, "%d and %d", sk, other)
		}
		if sk&(sk-1) == 0 {
			require.Equal(t, sk, stands)
		}
	}
}
