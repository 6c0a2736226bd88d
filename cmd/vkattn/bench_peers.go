package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/cmd/vkattn/internal/flagtext"
	"vkattn/cmd/vkattn/internal/peer"
	"vkattn/cudapath"
)

// vendorNVIDIA is the PCI vendor ID of NVIDIA, whose devices have the same UUID in CUDA
// and in Vulkan.
const vendorNVIDIA = 0x10de

// torchBackends are the backends of scripts/peer_torch.py on a GPU.
var torchBackends = []string{"flash", "cudnn", "efficient", "math", "copy"}

// openPeers starts the commands of the peers in parallel, as each may take seconds to
// import a framework. A command that is no peer is an error. A peer that cannot run on this
// machine is reported on standard error; its rows say why, and the others run.
func (a *app) openPeers(ctx context.Context, commands []string, timeout time.Duration, dev *attention.Device) ([]*peer.Peer, error) {
	options := peer.Options{Timeout: timeout}
	if v := dev.Vulkan(); v != nil && v.Info().VendorID == vendorNVIDIA {
		options.UUID = uuid(v.Info().UUID)
	} else if c := cudapath.ContextOf(dev); c != nil {
		options.UUID = uuid(c.Info().UUID)
	}
	peers := make([]*peer.Peer, len(commands))
	errs := make([]error, len(commands))
	var all sync.WaitGroup
	for i, c := range commands {
		all.Go(func() { peers[i], errs[i] = peer.Open(ctx, c, options) })
	}
	all.Wait()
	makeNamesUnique(peers)
	if err := ctx.Err(); err != nil {
		return peers, err
	}
	for i, p := range peers {
		if errors.Is(errs[i], peer.ErrNoPeer) {
			return peers, badInputf(`--peer %s: %w; a peer is, for example, "python3 scripts/peer_torch.py %s"; others are %s and, for --device cpu, cpu`,
				commands[i], errs[i], torchBackends[0], strings.Join(torchBackends[1:], ", "))
		}
		if errs[i] != nil {
			fmt.Fprintf(a.stderr, "vkattn: peer %s: %s\n", p.Info().Name, flagtext.OneLine(errs[i].Error()))
		}
	}
	return peers, nil
}

// makeNamesUnique appends a number to the name of a peer that another peer, a tier or a
// baseline has too: rows are identified by the name.
func makeNamesUnique(peers []*peer.Peer) {
	taken := flagtext.Texts(bench.Baselines)
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

// peerTrouble returns a line for each peer with failed rows, for standard error. Rows of
// peers do not change the exit code.
func peerTrouble(rows []*bench.Row) []string {
	var names []string
	of := map[string]*bench.Tally{}
	for _, r := range rows {
		if !r.Peer {
			continue
		}
		if of[r.Tier] == nil {
			of[r.Tier] = &bench.Tally{}
			names = append(names, r.Tier)
		}
		of[r.Tier].Add(r.Status, r.Reason)
	}
	var out []string
	for _, name := range names {
		t := of[name]
		if bad := t.Count[bench.Broken] + t.Count[bench.Fail]; bad > 0 {
			out = append(out, fmt.Sprintf("%d of %d rows of peer %s failed: %s", bad, t.Rows, name,
				cmp.Or(t.First[bench.Broken], t.First[bench.Fail])))
		}
	}
	return out
}
