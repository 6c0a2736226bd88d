package score_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	. "vkattn/attention/score"
	"vkattn/internal/randscore"
)

// slotsOf says which slots of a tile a mask leaves: of rows and heads from `at` on, keys from 0 on.
func slotsOf(e Expr, at Slots, rows, heads, keys, first int) (some, all bool) {
	all = true
	for range heads {
		row := at
		for range rows {
			row.S, row.J = make([]float64, keys), nil
			for k := range keys {
				row.J = append(row.J, first+k)
			}
			for _, yes := range evaluate(e, &row, Float32) {
				some, all = some || yes != 0, all && yes != 0
			}
			row.I++
			row.Row++
		}
		at.Head++
	}
	return some, all
}

// What Tiles says of a tile is so for each of its slots, of random masks and of the ready-made ones.
func TestTilesHoldForEverySlot(t *testing.T) {
	r := seeded(t)
	answers := [4]int{}
	place := func(r *rand.Rand) Slots {
		at := *random(r)
		at.Row = r.IntN(60)
		at.I = at.Row + r.IntN(80) - 20
		return at
	}
	for range 1500 {
		e := randscore.Draw(r, TypeBool, 4, false, tables...)
		if e.Err() != nil {
			continue
		}
		tiles := e.Tiles()
		known := tiles.Known
		require.NoError(t, tiles.Answer.Err())
		at, rows, heads, keys, first := place(r), 1+r.IntN(9), 1+r.IntN(3), 1+r.IntN(9), r.IntN(90)
		answer := AnswerOf(tiles, &at, rows, heads, first, keys)
		some, all := slotsOf(e, at, rows, heads, keys, first)
		require.False(t, answer == TileEmpty && some || answer == TileFull && !all, "%v: %d; %+v, %d rows, keys %d + %d", e, answer, at, rows, first, keys)
		require.False(t, known && answer == TileUnknown || !known && answer == TilePartial, "%v", e)
		answers[answer]++
	}
	require.Greater(t, answers[TileEmpty], 20)
	require.Greater(t, answers[TileFull], 20)
	// Of these the answer is the best there is.
	for text, want := range map[string]bool{"j <= i || j < 5": true, "j <= i && (j < 4 || i - j < 8)": true, "i / 8 == j / 8": true,
		"abs(i - j) < 6": true, "j < (i > 30 ? 40 : 10)": true, "max(i - 20, 0) <= j": true, "i < 20 != j < 20": false, "doc[i] == doc[j]": false, "doc[j / 3] < doc[i / 9] + 4": false,
		"j <= i || j < doc[b]": true, "h < 2 || j < 7": true, "j >> 3 <= i >> 3": true} {
		e := parse(t, text)
		tiles := e.Tiles()
		known := tiles.Known
		require.Equal(t, want, known, text)
		decided := 0
		for range 200 {
			at, rows, first := place(r), 8, 8*r.IntN(12)
			at.I -= at.I % 8
			answer := AnswerOf(tiles, &at, rows, 1, first, 8)
			some, all := slotsOf(e, at, rows, 1, 8, first)
			if answer != TileUnknown {
				decided++
			}
			switch {
			case !known && answer == TileUnknown:
			case all:
				require.Equal(t, TileFull, answer, "%s: %+v, keys from %d", text, at, first)
			case !some:
				require.Equal(t, TileEmpty, answer, "%s: %+v, keys from %d", text, at, first)
			default:
				require.Equal(t, TilePartial, answer, "%s: %+v, keys from %d", text, at, first)
			}
		}
		if e.Tiles().Sides != 0 {
			require.Positive(t, decided, text)
		}
	}
	for text, want := range map[string]uint32{"doc[i] == doc[j]": 0b101, "j <= i && doc[j] % 4 < 2": 0b100, "doc[i / 2] < doc[i] && doc[row] > 1": 1, "doc[i] < j && doc[row] > j - 9": 0b11,
		"doc[i - j] > 2": 0, "(i & 3) < (j & 5)": 0b101, "doc[b] < j": 0, "j <= i": 0} {
		require.Equal(t, want, parse(t, text).Tiles().Sides, text)
	}
}

// An expression that grows too large by the question is not known, and no error.
func TestTilesOfLargeMasks(t *testing.T) {
	e := Causal()
	for n := range 100 {
		e = Select(Lt(J, Int(n)), Lt(I, J), e)
	}
	require.NoError(t, e.CheckMask())
	tiles := e.Tiles()
	require.NoError(t, tiles.Answer.Err())
	require.True(t, tiles.Known || tiles.Answer == Int(TileUnknown))
}
