package bench

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOccupancyOfAMultiprocessor(t *testing.T) {
	of := func(registers, shared float64) []Statistic {
		return []Statistic{{"Register Count", registers}, {"Shared Memory Size", shared}}
	}
	require.Equal(t, &Estimate{Workgroups: 1, Subgroups: 8, Share: 0.125, Limit: "registers"}, estimate(256, of(255, 20<<10)))
	require.Equal(t, &Estimate{Workgroups: 4, Subgroups: 16, Share: 0.25, Limit: "registers"}, estimate(128, of(121, 0)))
	require.Equal(t, &Estimate{Workgroups: 2, Subgroups: 8, Share: 0.125, Limit: "shared memory"}, estimate(128, of(64, 20<<10)))
	require.Equal(t, &Estimate{Workgroups: 8, Subgroups: 64, Share: 1, Limit: "registers"}, estimate(256, of(32, 0)))
	require.Equal(t, &Estimate{Workgroups: 2, Subgroups: 64, Share: 1, Limit: "registers"}, estimate(1024, of(32, 0)))
	require.Equal(t, &Estimate{Workgroups: 32, Subgroups: 32, Share: 0.5, Limit: "workgroups"}, estimate(32, of(16, 0)))
	require.Equal(t, &Estimate{Workgroups: 2, Subgroups: 64, Share: 1, Limit: "invocations"}, estimate(1024, of(16, 0)))
	require.Nil(t, estimate(128, nil), "the driver reports no registers")
}

func TestWhatBoundsTheSpeed(t *testing.T) {
	for want, p := range map[string]Profile{
		"memory":             {Bytes: 4e6, Ceilings: ProfileCeilings{CopyTBs: 4.3, PeakTFLOPs: 600, DispatchUs: 0.4, BarrierUs: 0.1}},
		"compute":            {Bytes: 1e5, Ceilings: ProfileCeilings{CopyTBs: 4.3, PeakTFLOPs: 120, DispatchUs: 0.4, BarrierUs: 0.1}},
		"launches":           {Bytes: 1e5, Ceilings: ProfileCeilings{CopyTBs: 4.3, PeakTFLOPs: 600, DispatchUs: 0.6, BarrierUs: 0.2}},
		"latency":            {Bytes: 1e5, Ceilings: ProfileCeilings{CopyTBs: 4.3, PeakTFLOPs: 600, DispatchUs: 0.1}},
		"compute or latency": {Bytes: 1e5, Ceilings: ProfileCeilings{CopyTBs: 4.3, DispatchUs: 0.1}},
	} {
		p.Row = &Row{TFLOPs: 100, Ms: Summary{Median: 1e-3}}
		p.Dispatches = make([]ProfiledDispatch, 1)
		p.judge()
		require.Equal(t, want, p.Bound, p.Explanation)
	}
}
