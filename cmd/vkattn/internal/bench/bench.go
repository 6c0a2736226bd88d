package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/flagtext"
	"vkattn/vk"
)

// Bench measures problems on one device, or on the CPU.
type Bench struct {
	Device *vk.Device // nil: only the CPU tier can run
	Label  string     // of the device, in rows
	CPU    string     // of the CPU, in rows
	Specs  []Spec     // a row of each problem each
	Peers  []Peer     // and one of each of these, of problems they know
	// Baselines are the forms that rows are compared with, where there is such a form
	// of the problem.
	Baselines []Baseline
	Seed      uint64

	Repeats int           // timed runs of a row; 0: DefaultRepeats, fewer where each takes long
	MinTime time.Duration // timed runs of a row go on for at least this long

	// Clock reads the GPU's clocks; nil: not known.
	Clock func() *Clock
	// Progress is called with what is being done; nil: nobody listens.
	Progress func(text string)
	// Done is called after each row.
	Done func()
}

// specs are the rows of a problem but for the peers'.
func (b *Bench) specs(p Problem) []Spec {
	out := slices.Clone(b.Specs)
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

// peers are those that take a problem.
func (b *Bench) peers(p Problem) []Peer {
	if !p.Plain() {
		return nil
	}
	return b.Peers
}

// Rows is how many rows a list of problems has.
func (b *Bench) Rows(list []Problem) (n int) {
	for _, p := range list {
		n += len(b.specs(p)) + len(b.peers(p))
	}
	return n
}

// BaselineNames names the rows of this program that others of a list of problems are
// compared with.
func (b *Bench) BaselineNames(list []Problem) []string {
	names := cudaBaselines(b.Specs)
	for _, f := range b.Baselines {
		if slices.ContainsFunc(list, func(p Problem) bool { return f.applies(p, b.Device) }) {
			names = append(names, string(f))
		}
	}
	return names
}

// Group measures one problem by every Spec and every peer, their timed runs
// taking turns so that none gets a warmer or a quieter machine. It returns a row
// of each. The error is that of a device which cannot go on, or of ctx; the rows
// are good all the same.
func (b *Bench) Group(ctx context.Context, p Problem) (rows []*Row, err error) {
	specs, peers := b.specs(p), b.peers(p)
	if err := p.Shape.Validate(); err != nil {
		rows = b.Unfinished(p)
		for _, row := range rows {
			row.Status, row.Reason = Unsupported, plain(err)
			b.done()
		}
		return rows, nil
	}
	g := &group{Bench: b, problem: p}
	g.compared = slices.ContainsFunc(specs, func(s Spec) bool { return s.Baseline.isReference() })
	defer g.close()
	defer g.release(ctx)
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

// Unfinished are the rows of a problem that was interrupted.
func (b *Bench) Unfinished(p Problem) (rows []*Row) {
	for _, s := range b.specs(p) {
		rows = append(rows, b.row(p, s))
	}
	for _, by := range b.peers(p) {
		rows = append(rows, p.peerRow(by, b.Label))
	}
	return rows
}

// row is an empty row of what a Spec runs.
func (b *Bench) row(p Problem, s Spec) *Row {
	row := p.row(b.label(s.Tier))
	row.Tier, row.Kernel, row.Variant, row.Baseline = s.Tier.String(), s.Kernel, variantLabel(s.Lab.Variant), s.Baseline
	if s.Lab.Ablate != attention.AblateNone {
		row.Ablation = s.Lab.Ablate.String()
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
		b.Progress(fmt.Sprintf("%s %v: %s", who, p, what))
	}
}

// plain is an error in one line, by the names of flags and without the name of the
// package it is from.
func plain(err error) string {
	text := strings.Join(strings.FieldsFunc(flagtext.Sweep.Text(err), func(r rune) bool { return r == '\n' }), "; ")
	return strings.TrimPrefix(strings.TrimPrefix(text, "attention: "), "vk: ")
}
