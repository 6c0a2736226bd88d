// Package ranks verifies and times attention over several processes for vkattn: the same sweep in
// each, one device for each, and rank 0 prints. Every function that takes a *Session is called by
// all ranks, with the same arguments.
package ranks

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"vkattn/attention"
	"vkattn/attention/parallel"
	"vkattn/attention/parallel/processes"
	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/vk"
)

// Session is a rank's membership in a run of the command.
type Session struct {
	Device    *vk.Device // nil: the CPU tier
	Meter     *Meter     // the transport
	Group     *parallel.Group
	Transport processes.Transport // what moves the tensors
	PerHost   int                 // consecutive ranks on a host; 0: hosts have different numbers
	Schedule  parallel.Schedule
	stream    *vk.Stream
}

// callTimeout bounds one wait for another rank. The first call of a problem compiles its kernels.
const callTimeout = 5 * time.Minute

// NewSession owns the transport. dev stays the caller's.
func NewSession(dev *vk.Device, t parallel.Transport) (*Session, error) {
	s := &Session{Device: dev, Meter: &Meter{Transport: t}, Transport: processes.KindOf(t)}
	var err error
	if s.Group, err = parallel.NewGroup(s.Meter, parallel.GroupOptions{Timeout: callTimeout}); err == nil && dev != nil {
		s.stream, err = dev.NewStream("vkattn")
	}
	if err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return s, nil
}

// Rank is this rank.
func (s *Session) Rank() int { return s.Group.Rank() }

// Ranks is the number of ranks.
func (s *Session) Ranks() int { return s.Group.Ranks() }

// Close leaves after all ranks are done.
func (s *Session) Close(ctx context.Context) error {
	err := s.Group.Barrier(ctx)
	return errors.Join(err, s.Group.Close(), s.stream.Close())
}

// FindHosts learns from the ranks' numbers on their hosts how many of them share one.
func (s *Session) FindHosts(ctx context.Context, localRank int) error {
	all, err := Gather(ctx, s, localRank)
	if err != nil {
		return err
	}
	s.PerHost = perHost(all)
	return nil
}

// perHost is the number of consecutive ranks on each host, from their numbers there; 0 if it
// differs.
func perHost(local []int) int {
	n := 1
	for n < len(local) && local[n] != 0 {
		n++
	}
	for r := range local {
		if len(local)%n != 0 || local[r] != r%n {
			return 0
		}
	}
	return n
}

// config is that of an operation over the ranks of the session.
func (s *Session) config(cfg attention.Config, tier attention.Tier, mode Mode) parallel.Config {
	cfg.Tier = tier
	return parallel.Config{Config: cfg, Mode: mode.Mode, Inner: mode.Inner, Order: mode.Split, Schedule: s.Schedule,
		Machine: parallel.Machine{RanksPerHost: s.PerHost}}
}

// Gather gives every rank a value of each rank.
func Gather[T any](ctx context.Context, s *Session, mine T) ([]T, error) {
	text, err := json.Marshal(mine)
	if err != nil {
		return nil, err
	}
	parts, err := s.Meter.Gather(ctx, text)
	if err != nil {
		return nil, err
	}
	all := make([]T, len(parts))
	for r, text := range parts {
		if err := json.Unmarshal(text, &all[r]); err != nil {
			return nil, fmt.Errorf("rank %d: %w", r, err)
		}
	}
	return all, nil
}

// Refusal is why a rank cannot take part in a problem. The other ranks skip it too.
type Refusal struct {
	Rank   int
	Reason string
	Status bench.Status
	// Relayed is set if another rank's refusal is the reason.
	Relayed bool
}

// agree tells all ranks whether one of them cannot go on: refusal is nil if all can. err ends the
// run.
func (s *Session) agree(ctx context.Context, mine error) (refusal *Refusal, err error) {
	var r *Refusal
	if mine != nil {
		r = &Refusal{Rank: s.Rank(), Reason: mine.Error()}
		r.Status, _ = bench.StatusOf(mine)
		var named *parallel.RankError
		r.Relayed = errors.As(mine, &named) && named.Rank != s.Rank()
	}
	all, err := Gather(ctx, s, r)
	if err != nil {
		return nil, err
	}
	for _, r := range all {
		if r != nil && (refusal == nil || refusal.Relayed && !r.Relayed) {
			refusal = r
		}
	}
	return refusal, nil
}

// Agree returns the seed of rank 0. Ranks whose problems or tiers differ from those of rank 0 are
// refused: their devices may differ.
func (s *Session) Agree(ctx context.Context, seed uint64, work string) (uint64, error) {
	type plan struct {
		Seed uint64
		Work []byte
	}
	sum := sha256.Sum256([]byte(work))
	all, err := Gather(ctx, s, plan{seed, sum[:]})
	if err != nil {
		return 0, err
	}
	for r := range all {
		if !bytes.Equal(all[r].Work, all[0].Work) {
			return 0, &parallel.RankError{Rank: r, Err: fmt.Errorf("%w: it has other problems or tiers than rank 0; name them with flags", parallel.ErrMismatch)}
		}
	}
	return all[0].Seed, nil
}

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

// Announce gathers also while Off is set: ranks agree on calls by it.
func (m *Meter) Announce(mine []byte) (wait func(context.Context) ([][]byte, error), err error) {
	return m.Transport.(parallel.Near).Announce(mine)
}

// nothing is an exchange that moves nothing.
type nothing struct{}

func (nothing) Wait(context.Context) error { return nil }
