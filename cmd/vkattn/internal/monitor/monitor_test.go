package monitor

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// fake plays back readings; the last one stays.
type fake struct {
	list   []Reading
	closed bool
}

func (f *fake) Read() Reading {
	r := f.list[0]
	if len(f.list) > 1 {
		f.list = f.list[1:]
	}
	return r
}

func (f *fake) Close() { f.closed = true }

func at(mhz uint32, t Throttle) Reading {
	return Reading{SMMHz: mhz, MaxSMMHz: 1980, MemoryMHz: 3201, PowerWatts: 400, LimitWatts: 700, Celsius: 50, Throttle: t}
}

func TestRecordHasReadingsBeforeDuringAndAfter(t *testing.T) {
	gpu := &fake{list: []Reading{at(345, Idle), at(1980, 0), at(1965, PowerCap), at(1950, 0)}}
	var csv bytes.Buffer
	s := Start(gpu, &csv, time.Hour)
	var r Record
	s.Begin(&r, `cuda fa2, "x"`)
	s.mu.Lock()
	s.read()
	s.read()
	s.mu.Unlock()
	s.End()
	require.NoError(t, s.Close())
	require.True(t, gpu.closed)
	require.EqualValues(t, 345, r.Before.SMMHz)
	require.EqualValues(t, 1950, r.After.SMMHz)
	require.Equal(t, Series{Readings: 2, SMMHzMin: 1965, SMMHzMean: 1972.5, SMMHzMax: 1980, MemoryMHzMin: 3201, MemoryMHzMax: 3201,
		PowerMean: 400, PowerMax: 400, CelsiusMax: 50, Throttle: PowerCap, ThrottleShare: 0.5}, r.During)
	require.Equal(t, "power cap in 50 % of the readings", r.Unsteady())
	lines := strings.Split(strings.TrimSpace(csv.String()), "\n")
	require.Len(t, lines, 4)
	require.Contains(t, lines[2], `, 1965, 1980, 3201, 50, 400.00, 700.00, 0x0000000000000004, "cuda fa2, ""x"""`)
	require.Len(t, strings.Split(lines[0], ", "), len(strings.Split(CSVHeader, ", ")))
}

func TestShortRunsHaveAReading(t *testing.T) {
	s := Start(&fake{list: []Reading{at(1980, 0)}}, nil, time.Hour)
	var r Record
	s.Begin(&r, "")
	s.End()
	s.End()
	require.Equal(t, 1, r.During.Readings)
	require.NoError(t, s.Close())
}

// Readings between the turns of a row do not count for the row.
func TestReadingsOfOtherRowsAreLeftOut(t *testing.T) {
	s := Start(&fake{list: []Reading{at(1980, 0), at(1980, 0), at(345, Idle)}}, nil, time.Hour)
	var r Record
	s.Begin(&r, "")
	s.End()
	s.mu.Lock()
	s.read()
	s.mu.Unlock()
	require.NoError(t, s.Close())
	require.EqualValues(t, 1980, r.During.SMMHzMin)
	require.Empty(t, r.Unsteady())
}

func TestChangingClocksAreUnsteady(t *testing.T) {
	var r Record
	for _, mhz := range []uint32{1980, 1200} {
		r.During.add(at(mhz, Applications|Idle))
	}
	require.Equal(t, "SM clock 1200 to 1980 MHz", r.Unsteady())
}

func TestTheSamplerReadsInIntervals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var csv bytes.Buffer
		s := Start(&fake{list: []Reading{at(1980, 0)}}, &csv, Interval)
		time.Sleep(100*Interval + 1)
		require.NoError(t, s.Close())
		require.Equal(t, 100, strings.Count(csv.String(), "\n"))
	})
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("disk full") }

func TestCloseReturnsErrorsOfTheFile(t *testing.T) {
	s := Start(&fake{list: []Reading{at(1980, 0)}}, full{}, time.Hour)
	s.Begin(&Record{}, "")
	s.End()
	require.EqualError(t, s.Close(), "disk full")
}

func TestWithoutAGPUNothingHappens(t *testing.T) {
	require.Nil(t, Open([16]byte{}))
	s := Start(nil, full{}, time.Millisecond)
	s.Begin(&Record{}, "")
	s.End()
	require.NoError(t, s.Close())
}

func TestThrottleReasonsSurviveJSON(t *testing.T) {
	for _, reasons := range []Throttle{0, PowerCap, Idle | Thermal | Display, PowerBrake | 1<<20} {
		text, err := json.Marshal(Reading{Throttle: reasons})
		require.NoError(t, err)
		var back Reading
		require.NoError(t, json.Unmarshal(text, &back))
		require.Equal(t, reasons, back.Throttle, string(text))
	}
	var r Throttle
	require.ErrorContains(t, json.Unmarshal([]byte(`["tired"]`), &r), "tired")
}
