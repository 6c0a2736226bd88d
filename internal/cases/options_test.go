package cases

import (
	"maps"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/dropout"
	"vkattn/internal/oracle"
	"vkattn/internal/testlevel"
)

// plain is one row by the definitions, from the numbers of the case and not from
// how they lie in memory.
func (p *Problem) plain(b, h, row int) (o []float64, lse float64) {
	kv := h / p.Group()
	s := p.seq(b)
	q := p.data[b].q[(h*s.Rows+row)*p.D:][:p.D]
	o = make([]float64, p.Dv)
	var scores []float64
	var values [][]float64
	var keys []int
	most := math.Inf(-1)
	if p.Sinks {
		most = float64(p.sinkOf(h))
	}
	sink := most
	for t := range s.Keys {
		n := p.Weight(b, h, row, t)
		if n == 0 {
			continue
		}
		kScale, vScale := p.scaleAt(b, kv, t)
		var score float64
		for i, x := range DecodeRow(p.KeyType, p.data[b].k[kv*s.Keys+t], p.DType, p.D, kScale) {
			score += float64(q[i]) * x
		}
		score = p.modify(score*float64(p.Config(Target{}).ScaleValue()), b, h, row, t)
		most = max(most, score)
		v := DecodeRow(p.valueType(), p.data[b].v[kv*s.Keys+t], p.DType, p.Dv, vScale)
		for range n {
			scores, values, keys = append(scores, score), append(values, v), append(keys, t)
		}
	}
	if math.IsInf(most, -1) {
		return o, most
	}
	sum := math.Exp(sink - most)
	for i, x := range scores {
		w := math.Exp(x - most)
		sum += w
		w = p.dropped(w, b, h, row, keys[i])
		for j := range o {
			o[j] += w * values[i][j]
		}
	}
	for j := range o {
		o[j] /= sum
	}
	return o, most + math.Log(sum)
}

// modify applies softcap, bias, ALiBi and a modifier of the user to a scaled score.
func (p *Problem) modify(score float64, b, h, row, key int) float64 {
	if p.Softcap != 0 {
		score = float64(p.Softcap) * math.Tanh(score/float64(p.Softcap))
	}
	if p.Bias.On {
		score += float64(p.biasAt(b, h, row, key))
	}
	if p.ALiBi {
		score -= float64(p.slope(b, h)) * math.Abs(float64(p.position(b, row)-key))
	}
	return p.modifiedScores([]float64{score}, b, h, row, key)[0]
}

// dropped returns a weight behind dropout.
func (p *Problem) dropped(weight float64, b, h, row, key int) float64 {
	if p.Dropout == 0 {
		return weight
	}
	words := dropout.Philox([4]uint32{uint32(key / 4), uint32(row), uint32(b*p.Hq + h), p.args.DropoutOffset},
		[2]uint32{uint32(p.args.DropoutSeed), uint32(p.args.DropoutSeed >> 32)})
	if float64(words[key%4]) < math.Round(float64(p.Dropout)*0x1p32) {
		return 0
	}
	return weight / (1 - float64(p.Dropout))
}

// The reference, and low in float32, read the same out of memory as was put there.
func TestReferenceWithOptionsIsTheDefinition(t *testing.T) {
	testlevel.Long(t)
	all := append(WideOptions(), CompactOptions()...)
	for n := range 60 {
		all = append(all, RandomOptions(1000+n))
	}
	for i, c := range all {
		t.Run(c.String(), func(t *testing.T) {
			t.Parallel()
			dtype := attention.DTypes()[i%3]
			if c.D > 256 {
				dtype = attention.F16
			}
			p, err := NewProblem(c, dtype)
			require.NoError(t, err)
			cfg, args := p.Config(Target{Tier: attention.TierCPU, DType: dtype}), p.HostArgs(p.Spoiled())
			require.NoError(t, attention.CheckArgs(attention.Config(cfg), args))
			c.SampleMax = 150
			p.Case.SampleMax = c.SampleMax
			sample := p.SampleRows()
			ref, refLSE, err := attention.ReferenceSample(attention.Config(cfg), args, sample)
			require.NoError(t, err)
			low, lowLSE, err := oracle.Low(cfg, args, sample)
			require.NoError(t, err)
			within := map[attention.DType]float64{attention.F16: 4e-3, attention.BF16: 4e-2, attention.F32: 2e-5}[dtype]
			if c.Data == Large {
				within = math.Inf(1)
			}
			at := 0
			for _, s := range sample {
				for _, row := range s.Rows {
					o, lse := p.plain(s.B, s.H, row)
					if math.IsInf(lse, -1) {
						require.Equal(t, lse, refLSE[at])
						require.Equal(t, float32(lse), lowLSE[at])
					} else {
						require.InDelta(t, lse, refLSE[at], 1e-9, "LSE of sequence %d, head %d, row %d", s.B, s.H, row)
						require.InDelta(t, lse, lowLSE[at], 2*within)
					}
					for j := range o {
						require.InDelta(t, o[j], ref[at*p.Dv+j], 1e-9, "O of sequence %d, head %d, row %d, column %d", s.B, s.H, row, j)
						require.InDelta(t, o[j], low[at*p.Dv+j], within*2)
					}
					at++
				}
			}
		})
	}
}

// The tables name no case twice, and say how long they are.
func TestOptionTables(t *testing.T) {
	for name, all := range map[string][]Case{"compact": CompactOptions(), "brief": BriefOptions(), "wide": WideOptions(), "full": AllOptions()} {
		seen := map[string]bool{}
		pipelines := map[string]bool{}
		var flops int64
		for _, c := range all {
			require.False(t, seen[c.String()], "%v is there twice", c)
			seen[c.String()] = true
			pipelines[c.Pipeline()] = true
			flops += c.Flops()
			require.NoError(t, c.Config(Target{}).Validate(), "%v", c)
			require.NoError(t, c.Bounds().Validate(), "%v", c)
		}
		t.Logf("%s: %d cases, about %d pipelines, %.2f GFLOP", name, len(seen), len(pipelines), float64(flops)/1e9)
	}
}

// Each storage type meets every facet of a table, and the types together each case.
func TestShareOptions(t *testing.T) {
	for name, all := range map[string][]Case{"compact": CompactOptions(), "brief": BriefOptions(), "full": AllOptions()} {
		facets := map[string]bool{}
		for _, c := range all {
			for _, f := range c.Facets() {
				facets[f] = true
			}
		}
		for _, n := range []int{1, 2, 3} {
			somewhere := map[string]bool{}
			for i, share := range ShareOptions(all, n) {
				missing := maps.Clone(facets)
				pipelines := map[string]bool{}
				for _, c := range share {
					somewhere[c.String()] = true
					pipelines[c.Pipeline()] = true
					for _, f := range c.Facets() {
						delete(missing, f)
					}
				}
				require.Empty(t, missing, "type %d of %d lacks them", i, n)
				t.Logf("%s, type %d of %d: %d cases, about %d pipelines", name, i+1, n, len(share), len(pipelines))
			}
			require.Len(t, somewhere, len(all))
			dealt := 0
			for _, share := range DealOptions(all, n) {
				dealt += len(share)
			}
			require.Equal(t, len(all), dealt)
		}
	}
}

// Tables of every size have every storage type of K and V. The smallest has each of K or of V: kernels read
// both alike.
func TestTablesHaveEveryKVType(t *testing.T) {
	for name, table := range map[string][]Case{"compact": CompactOptions(), "brief": BriefOptions(), "wide": WideOptions(), "all": AllOptions()} {
		has, mixed := map[attention.KVType]bool{}, false
		for _, c := range table {
			if name == "compact" || c.KeyType == c.valueType() {
				has[c.KeyType], has[c.valueType()] = true, true
			}
			mixed = mixed || c.KeyType != c.valueType()
		}
		for _, kv := range attention.KVTypes() {
			if !has[kv] {
				t.Errorf("no %s case has K and V of type %v", name, kv)
			}
		}
		if !mixed {
			t.Errorf("no %s case has K and V of different types", name)
		}
	}
}
