package monitor

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAClockIsUpWhenItDoesNotGetHigher(t *testing.T) {
	many := func(n int, r Reading) (list []Reading) {
		for range n {
			list = append(list, r)
		}
		return list
	}
	for name, c := range map[string]struct {
		list []Reading
		up   bool
	}{
		"nothing read":                  {nil, false},
		"idle":                          {many(200, at(345, Idle)), false},
		"high once":                     {[]Reading{at(345, Idle), at(1980, 0)}, false},
		"high twice":                    {[]Reading{at(345, Idle), at(1785, Idle), at(1980, 0)}, true},
		"high and low in turn":          {[]Reading{at(1980, 0), at(345, Idle), at(1980, 0)}, false},
		"falls after it was high":       {[]Reading{at(1980, 0), at(1980, 0), at(345, Idle)}, false},
		"capped":                        {many(flatFor+1, at(1400, PowerCap)), true},
		"capped, not for long":          {many(flatFor, at(1400, PowerCap)), false},
		"capped and rising":             {append(many(flatFor, at(1400, PowerCap)), at(1410, PowerCap)), false},
		"set by the user":               {many(flatFor+1, at(1200, Applications|Idle)), true},
		"the driver tells no clock":     {[]Reading{{MaxSMMHz: 1980}}, true},
		"the highest clock is unknown":  {[]Reading{{SMMHz: 345}}, true},
		"flat, then the GPU idles more": {append(many(5, at(345, 0)), many(100, at(345, Idle))...), false},
	} {
		var r Rise
		for _, x := range c.list {
			r.add(x)
		}
		require.Equal(t, c.up, r.Up(), name)
	}
	var none *Rise
	require.True(t, none.Up())
}

func TestTheSamplerFollowsAClock(t *testing.T) {
	var none *Sampler
	require.True(t, none.Follow().Up())
	synctest.Test(t, func(t *testing.T) {
		gpu := &fake{list: []Reading{at(345, Idle), at(1980, 0)}}
		s := Start(gpu, nil, Interval)
		defer s.Close()
		r := s.Follow()
		require.False(t, r.Up())
		time.Sleep(4 * Interval)
		require.True(t, r.Up())
		s.Begin(&Record{}, "")
		s.End()
		require.NotSame(t, r, s.Follow(), "each follows from its own beginning")
	})
}

func TestIdleClocksAreUnsteady(t *testing.T) {
	for _, c := range []struct {
		mhz    uint32
		reason Throttle
		want   string
	}{{345, Idle, "idle SM clock: 345 of 1980 MHz"}, {1500, Idle, "idle SM clock: 1500 of 1980 MHz"}, {1600, Idle, ""}, {345, 0, ""}, {345, Idle | Applications, ""}} {
		r := Record{Before: at(c.mhz, c.reason)}
		r.During.add(at(c.mhz, c.reason))
		require.Equal(t, c.want, r.Unsteady())
	}
}
