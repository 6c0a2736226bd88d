package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/flagtext"
	"vkattn/cmd/vkattn/internal/monitor"
	"vkattn/vk"
)

// Bench measures problems on one device, or on the CPU.
type Bench struct {
	Device *vk.Device // nil: only the CPU tier can run
	Label  string     // name of the device in rows
	CPU    string     // name of the CPU in rows
	Specs  []Spec     // each problem has a row of each
	Peers  []Peer     // and a row of each peer, if the problem is Plain
	// Baselines adds a row of each baseline that applies to the problem.
	Baselines []Baseline
	Seed      uint64

	Timing

	// Monitor reads the clocks of the GPU; nil: they are not known.
	Monitor *monitor.Sampler
	// Progress is called with a text for a line of progress, the problem first. It may be nil.
	Progress func(text string)
	// Done is called after each row.
	Done func()

	now   func() time.Time                           // for tests; nil: time.Now
	sleep func(context.Context, time.Duration) error // for tests; nil: a timer
}

// specs lists the rows of a problem without the rows of peers.
func (b *Bench) specs(p Problem) []Spec {
	if p.Ceiling != "" {
		return []Spec{{}}
	}
	out := slices.Clone(b.Specs)
	if p.Ladder && b.Device != nil {
		out = ladderSpecs(out)
	}
	for _, f := range b.Baselines {
		if f.applies(p, b.Device) {
			tier := attention.TierAuto
			if len(b.Specs) > 0 {
				tier = b.Specs[0].Tier
			}
			out = append(out, f.spec(tier, b.Device))
		}
	}
	return out
}

// peers lists the peers that take a problem.
func (b *Bench) peers(p Problem) []Peer {
	if !p.Plain() || p.Ceiling != "" {
		return nil
	}
	return b.Peers
}

// Rows is the number of rows of a list of problems.
func (b *Bench) Rows(list []Problem) (n int) {
	for _, p := range list {
		n += len(b.specs(p)) + len(b.peers(p))
	}
	return n
}

// BaselineNames lists the names of the rows that other rows are compared with: tier cuda
// and the baselines that apply to any problem of the list.
func (b *Bench) BaselineNames(list []Problem) []string {
	names := cudaBaselines(b.Specs)
	for _, f := range b.Baselines {
		if slices.ContainsFunc(list, func(p Problem) bool { return f.applies(p, b.Device) }) {
			names = append(names, string(f))
		}
	}
	return names
}

// Group verifies and times one problem by every Spec, baseline and peer and returns a row
// of each. Their timed runs take turns, so that all have the same clocks and load. The
// error is a device that is lost or hangs, or the context's error; the rows are valid even then.
func (b *Bench) Group(ctx context.Context, p Problem) (rows []*Row, err error) {
	specs, peers := b.specs(p), b.peers(p)
	if err := p.Shape.Validate(); err != nil && p.Ceiling == "" {
		rows = b.Unfinished(p)
		for _, row := range rows {
			row.Status, row.Reason = Unsupported, errorText(err)
			b.done()
		}
		return rows, nil
	}
	g := &group{Bench: b, problem: p}
	g.compared = slices.ContainsFunc(specs, func(s Spec) bool { return s.Baseline.isReference() })
	defer func() {
		for _, r := range rows {
			if !r.Peer && r.Baseline == "" && r.Ceiling == "" {
				r.memory(p)
			}
		}
	}()
	defer g.close()
	defer g.release(ctx)
	if err := b.pause(ctx); err != nil {
		return b.Unfinished(p), err
	}
	var ready []*candidate
	add := func(c *candidate, row *Row) error {
		rows = append(rows, row)
		if c != nil {
			ready = append(ready, c)
		} else {
			b.done()
		}
		return errors.Join(ctx.Err(), g.lost)
	}
	for _, s := range specs {
		b.say(p, b.row(p, s).Who(), "checking")
		if err := add(g.candidate(ctx, s)); err != nil {
			return rows, err
		}
	}
	g.differences(rows)
	for _, by := range peers {
		b.say(p, by.Info().Name, "checking")
		if err := add(g.peer(ctx, by)); err != nil {
			return rows, err
		}
	}
	err = g.time(ctx, ready)
	compare(rows)
	return rows, err
}

// Unfinished returns the rows of a problem without results, for a problem that was
// interrupted.
func (b *Bench) Unfinished(p Problem) (rows []*Row) {
	for _, s := range b.specs(p) {
		rows = append(rows, b.row(p, s))
	}
	for _, by := range b.peers(p) {
		rows = append(rows, p.peerRow(by, b.Label))
	}
	return rows
}

// row returns the row of a Spec without results.
func (b *Bench) row(p Problem, s Spec) *Row {
	row := p.row(b.label(s.Tier))
	row.Tier, row.Kernel, row.Variant, row.Baseline = s.Tier.String(), s.Kernel, variantLabel(s.Experiment.Variant), s.Baseline
	row.Tiles = s.Experiment.BackwardTiles + s.Experiment.Tile // a row has one of them
	if s.Experiment.Ablate != attention.AblateNone {
		row.Ablation = s.Experiment.Ablate.String()
	}
	return row
}

func (b *Bench) label(tier attention.Tier) string {
	if b.Device == nil || tier == attention.TierCPU {
		return b.CPU
	}
	return b.Label
}

func (b *Bench) done() {
	if b.Done != nil {
		b.Done()
	}
}

func (b *Bench) say(p Problem, who, what string) {
	if b.Progress != nil {
		b.Progress(fmt.Sprintf("%v: %s %s", p, who, what))
	}
}

// errorText is the text of an error in one line, with flags instead of Go fields.
func errorText(err error) string { return flagtext.OneLine(flagtext.Sweep.Text(err)) }
