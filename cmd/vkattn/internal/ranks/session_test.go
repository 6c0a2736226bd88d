package ranks

import (
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/attention/parallel"
	"vkattn/internal/testlevel"
)

// The ranks of a host follow from the numbers that launchers give them.
func TestRanksPerHost(t *testing.T) {
	testlevel.HostOnly(t)
	for want, list := range map[int][][]int{
		1: {{0}, {0, 0, 0}},
		2: {{0, 1}, {0, 1, 0, 1}},
		4: {{0, 1, 2, 3}, {0, 1, 2, 3, 0, 1, 2, 3}},
		0: {{0, 1, 0}, {0, 1, 0, 1, 2}, {1, 0}, {0, 2, 0, 2}, {0, 0, 1, 1}},
	} {
		for _, local := range list {
			require.Equal(t, want, perHost(local), "%v", local)
		}
	}
}

// 2d shares heads among the ranks of a host, and passes K and V on across hosts.
func TestModeOfSeveralHosts(t *testing.T) {
	testlevel.HostOnly(t)
	transports, err := parallel.InProcess(4)
	require.NoError(t, err)
	s, err := NewSession(nil, transports[0])
	require.NoError(t, err)
	s.PerHost = perHost([]int{0, 1, 0, 1})
	op, err := parallel.New(s.Group, nil, s.config(attention.Config{HeadDim: 8}, attention.TierAuto, Mode{Mode: parallel.Mode2D}))
	require.NoError(t, err)
	defer op.Close()
	plan, err := op.Plan(parallel.Problem{Shape: attention.Shape{B: 1, Hq: 4, Sq: 16, Sk: 16}})
	require.NoError(t, err)
	require.Equal(t, []int{2, 2}, []int{plan.Inner, plan.Outer})
}
