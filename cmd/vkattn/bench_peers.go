package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/cmd/vkattn/internal/peer"
	"vkattn/vk"
)

// vendorNVIDIA is the PCI vendor whose CUDA devices have the UUIDs of Vulkan.
const vendorNVIDIA = 0x10de

// openPeers starts the commands side by side: each may import a framework. One
// that cannot start is mentioned at once; it costs its rows, which say why, and
// nothing else.
func (a *app) openPeers(ctx context.Context, commands []string, timeout time.Duration, dev *vk.Device) ([]*peer.Peer, error) {
	options := peer.Options{Timeout: timeout}
	if dev != nil && dev.Info().VendorID == vendorNVIDIA {
		options.UUID = uuid(dev.Info().UUID)
	}
	peers := make([]*peer.Peer, len(commands))
	errs := make([]error, len(commands))
	var all sync.WaitGroup
	for i, c := range commands {
		all.Go(func() { peers[i], errs[i] = peer.Open(ctx, c, options) })
	}
	all.Wait()
	nameApart(peers)
	if err := ctx.Err(); err != nil {
		return peers, err
	}
	for i, p := range peers {
		if errs[i] != nil {
			fmt.Fprintf(a.stderr, "vkattn: peer %s: %s\n", p.Info().Name, oneLine(errs[i].Error()))
		}
	}
	return peers, nil
}

// nameApart numbers peers that share a name with another or with a tier: rows
// are told apart by it.
func nameApart(peers []*peer.Peer) {
	taken := []string{}
	for _, f := range bench.Baselines {
		taken = append(taken, string(f.Baseline))
	}
	for t := attention.TierAuto; t.Valid(); t++ {
		taken = append(taken, t.String())
	}
	for _, p := range peers {
		name := p.Info().Name
		for n := 2; slices.Contains(taken, name); n++ {
			name = fmt.Sprintf("%s.%d", p.Info().Name, n)
		}
		p.Rename(name)
		taken = append(taken, name)
	}
}

func closePeers(peers []*peer.Peer) {
	var all sync.WaitGroup
	for _, p := range peers {
		all.Go(func() { _ = p.Close() })
	}
	all.Wait()
}

// peerTrouble is a line per peer whose rows failed, for standard error: rows of
// a peer do not count for the exit code.
func peerTrouble(rows []*bench.Row) []string {
	type trouble struct {
		bad, all int
		why      string
	}
	var names []string
	of := map[string]*trouble{}
	for _, r := range rows {
		if !r.Peer {
			continue
		}
		t := of[r.Tier]
		if t == nil {
			t = &trouble{}
			of[r.Tier] = t
			names = append(names, r.Tier)
		}
		t.all++
		if r.Status == bench.Broken || r.Status == bench.Fail {
			t.bad++
			if t.why == "" {
				t.why = r.Reason
			}
		}
	}
	var out []string
	for _, name := range names {
		if t := of[name]; t.bad > 0 {
			out = append(out, fmt.Sprintf("%d of %d rows of peer %s failed: %s", t.bad, t.all, name, t.why))
		}
	}
	return out
}
