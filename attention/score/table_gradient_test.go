package score_test

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	. "vkattn/attention/score"
	"vkattn/internal/randscore"
)

// Of random expressions each place where they read a table has the entry that the place reads, and the limit of differences as its
// slope, where these have one.
func TestTableGradientIsTheDerivative(t *testing.T) {
	r := seeded(t)
	judged, places, heads := 0, 0, 0
	for range 4000 {
		e := randscore.DrawSmooth(r, TypeFloat, 4, true, tables...)
		if r.IntN(4) == 0 {
			e = Mul(e, bias.At(Head, randscore.DrawSmooth(r, TypeInt, 2, false, doc)))
		}
		for which, table := range []Table{bias, cube} {
			g, list := e.TableGradient(table), PlacesOf(e, table)
			require.NoError(t, g.Err())
			require.Len(t, list, g.Places)
			if len(list) > 0 && g.PerHead {
				heads++
			}
			for n, place := range list {
				places++
				at := random(r)
				at.S, at.J, at.Bias, at.Read = at.S[:1], []int{r.IntN(33)}, at.Bias[:1], n
				memory := &at.Tables[1+which]
				rows, entries := g.Sizes(memory.Dims)
				entry := int(evaluate(g.Entry, at, nil)[0])
				require.True(t, entry >= 0 && entry < entries, "%v: entry %d of %d", place, entry, entries)
				if g.PerHead {
					entry += min(at.Head, rows-1) * entries
				}
				x := evaluate(place, at, nil)[0]
				require.Equal(t, x, float64(math.Float32frombits(binary.LittleEndian.Uint32(memory.Data[4*entry:]))), "%v", place)

				slope, moved := evaluate(g.Slope, at, nil)[0], WithSlope(e, place)
				value := func(x float64) float64 {
					at.Slope = x
					return evaluate(moved, at, nil)[0]
				}
				const h = 1e-5
				mid := value(x)
				left, right, near := (mid-value(x-h))/h, (value(x+h)-mid)/h, (value(x+h/4)-mid)/(h/4)
				room := 1e-3 * max(1, math.Abs(left), math.Abs(mid))
				if !(math.Abs(left-right) < room && math.Abs(near-right) < room) || math.Abs(mid) > 1e6 || math.IsNaN(slope) {
					continue // a kink, a step, or a pole
				}
				judged++
				require.InDelta(t, (left+right)/2, slope, 2*room, "%v by %v at %v, whose derivative is %v", e, place, x, g.Slope)
			}
		}
	}
	t.Logf("%d of %d places judged, %d tables with heads", judged, places, heads)
	require.Greater(t, judged, 800)
	require.Greater(t, heads, 200)
}

func TestPlacesOfTables(t *testing.T) {
	slopes, far := FloatTable("slopes", 1), FloatTable("far", 1)
	for _, tt := range []struct {
		text    string
		of      Table
		dims    [MaxRank]int
		places  int
		perHead bool
		heads   int
		entries int
		slope   string
	}{
		{"s + bias[h, j]", bias, [3]int{8, 5}, 1, true, 8, 5, "1.0"},
		{"s + bias[h, j] + bias[hkv, i]", bias, [3]int{8, 5}, 2, false, 1, 40, "read < 1 ? 1.0 : 1.0"},
		{"s - slopes[h] * float(i - j)", slopes, [3]int{8}, 1, true, 8, 1, "-float(i - j)"},
		{"s * far[j] + far[j]", far, [3]int{9}, 1, false, 1, 9, "s + 1.0"}, // one place, twice
		{"far[j] > 0.0 ? s : 0.0", far, [3]int{9}, 0, false, 1, 9, "0.0"},
		{"s + floor(far[j]) + sign(far[i])", far, [3]int{9}, 0, false, 1, 9, "0.0"},
		{"cube[h, i, j] * s", cube, [3]int{2, 3, 4}, 1, true, 2, 12, "s"},
		{"s", far, [3]int{9}, 0, false, 1, 9, "0.0"},
		{"s + float(doc[j])", doc, [3]int{9}, 0, false, 1, 9, "0.0"},
	} {
		e, err := Parse(tt.text, append(tables, slopes, far)...)
		require.NoError(t, err)
		g := e.TableGradient(tt.of)
		require.NoError(t, g.Err())
		require.Equal(t, tt.places, g.Places, tt.text)
		require.Equal(t, tt.perHead, g.PerHead, tt.text)
		heads, entries := g.Sizes(tt.dims)
		require.Equal(t, []int{tt.heads, tt.entries}, []int{heads, entries}, tt.text)
		require.Equal(t, tt.slope, g.Slope.String(), tt.text)
	}
	e, err := Parse("s + floor(far[j]) + (far[i] < s ? 1.0 : 0.0)", far)
	require.NoError(t, err)
	require.Equal(t, []string{"<"}, e.Steps())
	require.Equal(t, []string{"<", "floor"}, e.Steps(far))
}

// An expression whose places are too many for one function is an error.
func TestLargeTableGradients(t *testing.T) {
	far, e := FloatTable("far", 1), S
	for n := range 150 {
		e = Add(e, Mul(far.At(Int(n)), S))
	}
	require.NoError(t, e.TableGradient(far).Err())
	deep := S
	for n := range 100 {
		deep = Add(deep, Sin(far.At(Int(n))))
	}
	for range 3 {
		deep = Mul(deep, deep)
	}
	require.ErrorContains(t, deep.TableGradient(far).Err(), "operations")
}
