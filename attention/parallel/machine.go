package parallel

import (
	"math"

	"vkattn/attention"
)

// Machine holds the speeds from which a plan estimates times. The zero value of a field is
// what two H200 of one host measured with this library's kernels and NCCL 2.28, and 400 Gb/s
// InfiniBand a rank between hosts.
type Machine struct {
	RanksPerHost int     // consecutive ranks with fast links to each other; 0: all
	Flops        float64 // per second of a rank; 0: 340e12
	Link         float64 // bytes per second that a rank sends within a host while it receives; 0: 317e9
	Network      float64 // the same between hosts; 0: 45e9
	Memory       float64 // bytes per second that a rank reads and writes; 0: 4.3e12
	Latency      float64 // seconds of a message or collective without its bytes; 0: 37e-6

	// A device executes its kernels and those that move messages within a host by turns. Turn is the
	// time in seconds of a change to messages and back; 0: 350e-6. A message that overlaps the computation
	// costs the kernels Turn and OverlapCost times its own duration; 0: 4.
	Turn, OverlapCost float64
}

func (m Machine) validate() error {
	for _, x := range []struct {
		field string
		value float64
	}{{"Machine.RanksPerHost", float64(m.RanksPerHost)}, {"Machine.Flops", m.Flops}, {"Machine.Link", m.Link},
		{"Machine.Network", m.Network}, {"Machine.Memory", m.Memory}, {"Machine.Latency", m.Latency},
		{"Machine.Turn", m.Turn}, {"Machine.OverlapCost", m.OverlapCost}} {
		if !(x.value >= 0) || math.IsInf(x.value, 1) {
			return &attention.ShapeError{Field: x.field, Got: x.value, Want: "a finite number above 0, or 0 for the default"}
		}
	}
	return nil
}

// resolved fills in the defaults.
func (m Machine) resolved(ranks int) Machine {
	for _, x := range []struct {
		value *float64
		or    float64
	}{{&m.Flops, 340e12}, {&m.Link, 317e9}, {&m.Network, 45e9}, {&m.Memory, 4.3e12}, {&m.Latency, 37e-6},
		{&m.Turn, 350e-6}, {&m.OverlapCost, 4}} {
		if *x.value == 0 {
			*x.value = x.or
		}
	}
	if m.RanksPerHost == 0 || m.RanksPerHost > ranks {
		m.RanksPerHost = ranks
	}
	return m
}

// ringSeconds is the time of a message to the next rank, which is on another host for some.
func (m *Machine) ringSeconds(bytes float64, ranks int) float64 {
	speed := m.Link
	if ranks > m.RanksPerHost {
		speed = m.Network
	}
	return m.Latency + bytes/speed
}

// collectiveSeconds is the time in which each of n ranks sends bytes, spread evenly over the others. From
// one of them to the next the number of the rank grows by stride.
func (m *Machine) collectiveSeconds(bytes float64, n, stride int) float64 {
	if n < 2 {
		return 0
	}
	near := max(1, m.RanksPerHost/stride)
	far := float64(max(0, n-near)) / float64(n-1) // share of the peers on other hosts
	return m.Latency + max(bytes*(1-far)/m.Link, bytes*far/m.Network)
}
