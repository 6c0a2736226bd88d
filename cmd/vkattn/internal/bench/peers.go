package bench

import (
	"context"
	"errors"
	"math"
	"time"

	"vkattn/cmd/vkattn/internal/fields"
	"vkattn/cmd/vkattn/internal/peer"
)

// Peer is another implementation, timed in turns with the tiers. [peer.Peer] is one.
type Peer interface {
	Info() peer.Info
	Problem(context.Context, peer.Problem) (peer.Answer, error)
	Time(ctx context.Context, n int) ([]time.Duration, error)
	Release(context.Context) error
}

// peer has a peer prepare the problem. If there is nothing to time it returns nil and a
// row with the reason.
func (g *group) peer(ctx context.Context, p Peer) (*candidate, *Row) {
	row := g.problem.peerRow(p, g.Label)
	s, c := g.problem.Shape, g.problem.Config
	sets := countSets(g.problem, g.rotation(g.Device))
	g.peers = append(g.peers, p)
	answer, err := p.Problem(ctx, peer.Problem{
		Call: fields.Of(s, c), Pass: passOf(g.problem.Pass), Scale: c.ScaleValue(), Sets: sets, Seed: g.Seed,
	})
	if err != nil {
		return nil, g.stop(row, err)
	}
	row.Device = peerDevice(p, g.Label) // the peer may have been restarted
	row.Sets, row.Timer, row.Memory = sets, p.Info().Timer, answer.Memory
	number := func(v *float64) Number {
		if v == nil {
			return Number(math.NaN())
		}
		return Number(*v)
	}
	if answer.Checked.Rows > 0 {
		row.Checked = Checked{Rows: answer.Checked.Rows, Of: s.Rows(),
			MaxError: number(answer.Checked.MaxError), NMSE: number(answer.Checked.NMSE)}
	}
	return &candidate{row: row, onCPU: g.Device == nil, run: p.Time}, row
}

// passOf is the pass in a request. The forward pass has no name there, for peers that know
// no other.
func passOf(p Pass) string {
	if p == PassForward {
		return ""
	}
	return p.String()
}

func (p Problem) peerRow(by Peer, label string) *Row {
	row := p.row(peerDevice(by, label))
	row.Tier, row.Peer = by.Info().Name, true
	return row
}

func peerDevice(p Peer, label string) string {
	if d := p.Info().Device; d != "" {
		return d
	}
	return label
}

// release has the peers free the memory of the problem, which other processes need for
// the next one. A peer that fails here reports it at the next problem.
func (g *group) release(ctx context.Context) {
	for _, p := range g.peers {
		_ = p.Release(ctx)
	}
}

// peerStatus is the status of a row by the error of its peer.
func peerStatus(err error) (Status, bool) {
	switch {
	case errors.Is(err, peer.ErrUnsupported):
		return Unsupported, true
	case errors.Is(err, peer.ErrOutOfMemory):
		return OOM, true
	case errors.Is(err, peer.ErrWrong):
		return Fail, true
	}
	return "", false
}
