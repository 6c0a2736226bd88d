package score_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	. "vkattn/attention/score"
	"vkattn/internal/randscore"
)

// Bounds of J by I are found in whatever form they are written, and nothing else is taken for one.
func TestTakeBands(t *testing.T) {
	no := Band{-1, -1, 0}
	right := func(n int) Band { return Band{-1, n, 0} }
	left := func(n int) Band { return Band{n, -1, 0} }
	for text, want := range map[string]struct {
		bands []Band
		rest  string
	}{
		"j <= i":                           {[]Band{right(0)}, "none"},
		"i >= j":                           {[]Band{right(0)}, "none"},
		"!(j > i)":                         {[]Band{right(0)}, "none"},
		"j < i + 1":                        {[]Band{right(0)}, "none"},
		"2 * j - 2 * i <= 7":               {nil, "2 * j - 2 * i <= 7"}, // 2 * 2^30 wraps
		"i - j < 128":                      {[]Band{left(127)}, "none"},
		"i - 100 <= j && j <= i + 2":       {[]Band{left(100), right(2)}, "none"},
		"abs(i - j) <= 9":                  {[]Band{left(9), right(9)}, "none"},
		"abs(j - i) < 9":                   {[]Band{right(8), left(8)}, "none"},
		"i == j":                           {[]Band{left(0), right(0)}, "none"},
		"i / 64 == j / 64":                 {[]Band{{-1, -1, 64}}, "none"},
		"j / 64 == i / 64":                 {[]Band{{-1, -1, 64}}, "none"},
		"0 < 1 && j <= i":                  {[]Band{no, right(0)}, "none"},
		"j <= i && doc[i] == doc[j]":       {[]Band{right(0)}, "doc[i] == doc[j]"},
		"j % 3 == 0 && j <= i && h < 2":    {[]Band{right(0)}, "j % 3 == 0 && h < 2"},
		"j <= i || j < 4":                  {nil, "j <= i || j < 4"},
		"j < i":                            {nil, "j < i"}, // no option has a bound in front of the position
		"i - j >= 4":                       {nil, "4 <= i - j"},
		"j <= 2 * i":                       {nil, "j <= 2 * i"},
		"i + j < 100":                      {nil, "i + j < 100"},
		"i - j - 2147483647 <= 0":          {nil, "i - j - 2147483647 <= 0"},
		"i / 64 == j / 32":                 {nil, "i / 64 == j / 32"},
		"i / 0 == j / 0":                   {nil, "i / 0 == j / 0"},
		"float(j) <= float(i)":             {nil, "float(j) <= float(i)"},
		"i * j < 10 || row == j":           {nil, "i * j < 10 || row == j"},
		"1 < 0":                            {nil, "1 < 0"},
		"i * 1073741824 <= 1073741824 * j": {nil, "i * 1073741824 <= 1073741824 * j"},
	} {
		var bands []Band
		rest := parse(t, text).TakeBands(func(b Band) bool {
			bands = append(bands, b)
			return true
		})
		require.Equal(t, want.bands, bands, text)
		require.Equal(t, want.rest, rest.String(), text)
	}
	whole := parse(t, "j <= i && i - j < 9")
	require.Equal(t, whole, whole.TakeBands(func(Band) bool { return false }))
}

// The bands and the rest of a random mask say together what the mask says.
func TestBandsOfRandomMasks(t *testing.T) {
	r := seeded(t)
	found := 0
	for range 4000 {
		e := randscore.Draw(r, TypeBool, 3, false, tables...)
		for range r.IntN(3) {
			e = And(e, parse(t, []string{"j <= i", "i - j < 5", "abs(i - j) <= 4", "j - 3 <= i", "i / 4 == j / 4", "!(i < j - 2)"}[r.IntN(6)]))
		}
		var bands []Band
		rest := e.TakeBands(func(b Band) bool {
			if r.IntN(4) == 0 {
				return false
			}
			bands = append(bands, b)
			return true
		})
		found += len(bands)
		at := random(r)
		want := evaluate(e, at, Float32)
		got := make([]float64, len(want))
		for n := range got {
			got[n] = 1
		}
		if rest.Given() {
			got = evaluate(rest, at, Float32)
		}
		for n, j := range at.J {
			for _, b := range bands {
				if b.Left >= 0 && at.I-j > b.Left || b.Right >= 0 && j-at.I > b.Right ||
					b.Chunk > 0 && math.Floor(float64(at.I)/float64(b.Chunk)) != math.Floor(float64(j)/float64(b.Chunk)) {
					got[n] = 0
				}
			}
		}
		require.Equal(t, want, got, "%v: %v and %v", e, bands, rest)
	}
	require.Greater(t, found, 1000)
}
