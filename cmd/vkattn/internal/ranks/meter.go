package ranks

import (
	"context"

	"vkattn/attention/parallel"
)

// Meter counts what a transport sends. While Off is set it moves nothing, for the time of a call
// without its transfers; results are then wrong.
type Meter struct {
	parallel.Transport
	Off      bool
	Bytes    uint64 // sent to other ranks
	Messages uint64 // sent
}

// Exchange counts the sends.
func (m *Meter) Exchange(sends, receives []parallel.Transfer) (parallel.Pending, error) {
	for i := range sends {
		m.Bytes += uint64(sends[i].Bytes)
		m.Messages++
	}
	if m.Off {
		return nothing{}, nil
	}
	return m.Transport.Exchange(sends, receives)
}

// NearBytes is that of the transport, see parallel.Near.
func (m *Meter) NearBytes() int64 {
	if n, ok := m.Transport.(parallel.Near); ok {
		return n.NearBytes()
	}
	return 0
}

// GatherNear counts this rank's bytes for each other rank.
func (m *Meter) GatherNear(ctx context.Context, parts [][][]byte) error {
	for _, x := range parts[m.Rank()] {
		m.Bytes += uint64(len(x)) * uint64(len(parts)-1)
		m.Messages += uint64(len(parts) - 1)
	}
	if m.Off {
		return nil
	}
	return m.Transport.(parallel.Near).GatherNear(ctx, parts)
}

// AnnounceBytes is that of the transport, see parallel.Announcer.
func (m *Meter) AnnounceBytes() int {
	if t, ok := m.Transport.(parallel.Announcer); ok {
		return t.AnnounceBytes()
	}
	return 0
}

// Announce gathers also while Off is set: ranks agree on calls by it.
func (m *Meter) Announce(mine []byte) (parallel.Announced, error) {
	return m.Transport.(parallel.Announcer).Announce(mine)
}

// nothing is an exchange that moves nothing.
type nothing struct{}

func (nothing) Wait(context.Context) error { return nil }
