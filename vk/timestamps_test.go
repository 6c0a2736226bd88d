package vk

import (
	"math"
	"testing"
	"time"
	"unsafe"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Timestamps that cannot be times are no times: of a clock that runs backwards, of a query that some drivers
// leave at 0, or beyond what the host waited.
func TestImpossibleTimestampsAreNoTimes(t *testing.T) {
	d := openExecuting(t)
	d.info.Caps.Limits.TimestampPeriodNs = 1
	s := &Stream{Commands: &Commands{d: d}, timeline: &Timeline{d: d}}
	s.s = s
	elapsed := func(bits uint32, from, to uint64) (time.Duration, error) {
		d.info.Caps.Limits.TimestampValidBits = bits
		s.ticks = tickLog{}
		s.ticks.add(stamp{from, time.Second, 3 * time.Second})
		s.ticks.add(stamp{to, 2 * time.Second, 4 * time.Second})
		return s.Elapsed(Mark{s, 0}, Mark{s, 1})
	}
	for _, bits := range []uint32{64, 48, 36} {
		for _, c := range [][2]uint64{{500, 100}, {7e9, 0}, {0, 4e9}, {1e9, 5e9}} {
			took, err := elapsed(bits, c[0], c[1])
			assert.ErrorIs(t, err, ErrTimestamps, "%d bits, %v: %v", bits, c, took)
		}
		for _, c := range [][2]uint64{{500, 500}, {1e9, 4e9}, {1<<bits - 10, 10}} {
			took, err := elapsed(bits, c[0], c[1])
			require.NoError(t, err)
			require.EqualValues(t, (c[1]-c[0])&(1<<bits-1), took)
		}
	}
	assert.Equal(t, time.Duration(math.MaxInt64), ticksToDuration(500, 100, 64, 1))
}

func TestACalibrationIsOfItsCall(t *testing.T) {
	d := openExecuting(t)
	if d.Caps().CalibratedTimestamps {
		c, err := d.Calibrate()
		require.NoError(t, err)
		require.Positive(t, c.Host)
	}
	d.info.Caps.CalibratedTimestamps = true
	function := (*uintptr)(unsafe.Pointer(&d.c.GetCalibratedTimestamps))
	defer func(was uintptr) { *function = was }(*function)
	var stamps [2]uint64
	*function = purego.NewCallback(func(_ uintptr, _ uint32, _ uintptr, out *[2]uint64, deviation *uint64) uintptr {
		*out, *deviation = stamps, 1000
		return 0
	})
	for _, bad := range [][2]uint64{{0, 0}, {5, 0}, {5, 17}, {5, math.MaxUint64}, {5, 1 << 62}} {
		stamps = bad
		_, err := d.Calibrate()
		assert.ErrorIs(t, err, ErrTimestamps, bad)
	}
}
