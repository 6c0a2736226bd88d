package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"vkattn/attention"
	"vkattn/attention/score"
	"vkattn/cmd/vkattn/internal/fields"
	"vkattn/cmd/vkattn/internal/flagtext"
	"vkattn/cmd/vkattn/internal/monitor"
	"vkattn/cmd/vkattn/internal/peer"
	"vkattn/internal/problem"
)

// Bench measures problems on one device, or on the CPU.
type Bench struct {
	// Device is a Vulkan device, or a CUDA device without Vulkan; nil: only the CPU tier can run.
	Device *attention.Device
	Label  string // name of the device in rows
	CPU    string // name of the CPU in rows
	Specs  []Spec // each problem has a row of each
	Peers  []Peer // and a row of each peer, if the problem is Plain
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
}

// specs lists the rows of a problem without the rows of peers.
func (b *Bench) specs(p Problem) []Spec {
	if p.Ceiling != "" {
		return []Spec{{}}
	}
	out := slices.Clone(b.Specs)
	if p.Ladder && b.Device.Vulkan() != nil {
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
func (b *Bench) peers(p Problem) (list []Peer) {
	plain := p
	plain.Config.ScoreMod, plain.Config.MaskMod, plain.Tables = score.Expr{}, score.Expr{}, ""
	if !plain.Plain() || p.Ceiling != "" || p.Modified() && p.Config.Align == attention.TopLeft {
		return nil // requests have no alignment
	}
	for _, by := range b.Peers {
		if plain == p || by.Info().Modifiers {
			list = append(list, by)
		}
	}
	return list
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

// Planned are the rows of a list of problems without results.
func (b *Bench) Planned(list []Problem) (rows []*Row) {
	for _, p := range list {
		rows = append(rows, b.Unfinished(p)...)
	}
	return rows
}

// row returns the row of a Spec without results.
func (b *Bench) row(p Problem, s Spec) *Row {
	row := p.row(b.label(s.Tier))
	row.Tier, row.Kernel, row.Variant, row.Baseline = s.Tier.String(), s.Kernel, variantLabel(s.Experiment.Variant), s.Baseline
	row.Tiles = s.Experiment.BackwardTiles + s.Experiment.Tile // a row has one of them
	if s.Experiment.Ablate != problem.AblateNone {
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

// Spec says what one row of each problem runs.
type Spec struct {
	Tier       attention.Tier
	Kernel     string // family of tier cuda; "": its own choice
	Experiment attention.Experiment
	Baseline   Baseline // what the others are compared with; "": one of these
}

// String names the tier and the kernel family, such as "coopmat" or "cuda fa2".
func (s Spec) String() string { return kernelName(s.Tier.String(), s.Kernel) }

// Specs is the cross product of tiers, variants and ablations, for tier cuda of kernel families, and of named
// tiles of the forward kernel and of the backward kernels, see attention.Experiment. Without variants and
// ablations it is the kernel as shipped, without families the best family for each problem. An empty tile
// stands for that which calls take.
func Specs(tiers []attention.Tier, kernels []string, variants []int, ablations []problem.Ablation, tile,
	tiles []string) (out []Spec) {
	for _, t := range tiers {
		families := []string{""}
		if t == attention.TierCUDA && len(kernels) > 0 {
			families = kernels
		}
		for _, k := range families {
			out = append(out, Spec{Tier: t, Kernel: k})
		}
	}
	out = withEach(out, variants, func(s *Spec, v int) { s.Experiment.Variant = v })
	out = withEach(out, ablations, func(s *Spec, a problem.Ablation) { s.Experiment.Ablate = a })
	out = withEach(out, tile, func(s *Spec, tile string) { s.Experiment.Tile = tile })
	return withEach(out, tiles, func(s *Spec, tiles string) { s.Experiment.BackwardTiles = tiles })
}

// withEach is every Spec once with each value, or as it is if there are none.
func withEach[T any](specs []Spec, values []T, set func(s *Spec, value T)) []Spec {
	if len(values) == 0 {
		return specs
	}
	var out []Spec
	for _, s := range specs {
		for _, v := range values {
			set(&s, v)
			out = append(out, s)
		}
	}
	return out
}

// ladderSpecs are all steps of the kernel's development on each tier that has them, unless
// a Spec names some. Tiers without SPIR-V run the kernel as shipped.
func ladderSpecs(specs []Spec) (out []Spec) {
	for _, s := range specs {
		if s.Experiment.Variant > 0 || s.Tier.WithoutSPIRV() {
			out = append(out, s)
			continue
		}
		for v := 1; v <= problem.Variants; v++ {
			s.Experiment.Variant = v
			out = append(out, s)
		}
	}
	return out
}

// cudaBaselines lists the names of the rows of tier cuda, with which other rows are
// compared.
func cudaBaselines(specs []Spec) (names []string) {
	for _, s := range specs {
		if s.Tier == attention.TierCUDA && s.Experiment == (attention.Experiment{}) {
			names = append(names, s.String())
		}
	}
	return names
}

// kernelName is the name of a tier with its kernel family, such as "coopmat" or "cuda fa2".
func kernelName(tier, family string) string {
	if family == "" {
		return tier
	}
	return tier + " " + family
}

// variantLabel is the name of a variant, such as "v3", and empty for the kernel as shipped.
func variantLabel(v int) string {
	if v == 0 {
		return ""
	}
	return fmt.Sprintf("v%d", v)
}

// ParseVariant parses "v1" to "v8", or "1" to "8".
func ParseVariant(s string) (int, error) {
	for v := 1; v <= problem.Variants; v++ {
		if s == variantLabel(v) || "v"+s == variantLabel(v) {
			return v, nil
		}
	}
	return 0, fmt.Errorf("unknown variant %q, want v1 to v%d, or all", s, problem.Variants)
}

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
		ScoreMod: modifierText(c.ScoreMod), MaskMod: modifierText(c.MaskMod), Tables: string(g.problem.Tables),
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

// modifierText is a modifier in a request, empty if there is none.
func modifierText(e score.Expr) string {
	if !e.Given() {
		return ""
	}
	return e.String()
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
