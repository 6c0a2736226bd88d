package peer

import (
	"context"
	"errors"
	"math"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"
)

// printable checks what goes to a terminal and into tables.
func printable(t *testing.T, text string) {
	require.Less(t, len(text), 4096)
	for _, r := range text {
		require.Falsef(t, unicode.IsControl(r), "%q", text)
	}
}

// An answer is taken, or is refused in one line of printable characters, whatever the
// peer writes.
func FuzzAnswer(f *testing.F) {
	for _, line := range []string{
		`{"id":1,"name":"flash","program":"torch 2.11.0","device":"NVIDIA H200","uuid":"8f0e","timer":"device"}`,
		`{"id":1,"status":"ok","memory_bytes":5,"checked":{"rows":2,"max_error":0.5,"nmse":null}}`,
		`{"id":1,"status":"unsupported","reason":"no\nf32"}`, `{"id":1,"status":"fine"}`, `{"id":0}`, `{"id":1e0}`, `{}`, `[]`, `null`,
		`{"id":1,"name":"a|b"}`, `{"id":1,"memory_bytes":-1}`, `{"id":1,"status":"error","reason":"\u009b31m\u0085"}`,
		"UserWarning: \x1b[1mnice\x1b[0m day", "",
	} {
		f.Add(line, "00ffaa")
	}
	f.Fuzz(func(t *testing.T, line, uuid string) {
		p := &process{lastID: 1}
		var info Info
		err := p.decode(context.Background(), "hello", line, true, &info)
		if err != nil {
			printable(t, err.Error())
			var said *refusal
			if !errors.As(err, &said) {
				require.ErrorIs(t, err, errRubbish)
				return
			}
		}
		if info.check(uuid) == nil {
			for _, text := range []string{info.Name, info.Program, info.Device, info.Timer} {
				printable(t, text)
			}
		}
		var a Answer
		if err := p.decode(context.Background(), "problem", line, true, &a); err != nil {
			printable(t, err.Error())
		}
	})
}

// Times are those that were written, to a nanosecond, or are refused.
func FuzzTimes(f *testing.F) {
	for _, ms := range []float64{1, 0.25, 0, -1, 1e-9, 1e300, math.MaxInt64 / 1e6, math.NaN(), math.Inf(1)} {
		f.Add(ms, 1)
	}
	f.Add(1.0, 2)
	f.Fuzz(func(t *testing.T, ms float64, n int) {
		times, err := durations([]float64{ms}, n)
		if err != nil {
			printable(t, err.Error())
			return
		}
		require.Equal(t, 1, n)
		require.Positive(t, times[0])
		require.InDelta(t, ms, float64(times[0])/1e6, 1e-6+ms*1e-9)
	})
}
