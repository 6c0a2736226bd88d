package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/cmd/vkattn/internal/fields"
	"vkattn/cmd/vkattn/internal/flagtext"
	"vkattn/cmd/vkattn/internal/markdown"
	"vkattn/cmd/vkattn/internal/npy"
	"vkattn/cudapath"
	"vkattn/internal/accuracy"
	"vkattn/internal/atomicfile"
	"vkattn/internal/problem"
)

// runFlags are the flags of `vkattn run`.
type runFlags struct {
	paths
	bshd         bool // --layout
	scale        attention.Scale
	device       string
	tier         attention.Tier
	tuning       attention.Tuning
	json, verify bool
	timeout      time.Duration
	f32          bool // dQ, dK and dV are not rounded to the storage type
	optionFlags
}

func (a *app) runCommand() *cobra.Command {
	o := runFlags{paths: paths{}}
	c := &cobra.Command{
		Use:   "run --q q.npy --k k.npy --v v.npy --o o.npy",
		Short: "compute attention of .npy files",
		Long: `Computes O = softmax(scale * Q K^T, masked) V for each batch and query head.

With --layout bhsd, Q is [B, Hq, Sq, Dqk], K is [B, Hkv, Sk, Dqk] and V is
[B, Hkv, Sk, Dv]. With bshd, heads and rows are swapped, in O too. Files hold float16,
bfloat16 or float32. --dtype is the storage type of the problem; every file is rounded
to it (f16 to f32 is exact). Without --dtype, the files decide: their type if all have
the same one, else f32.

O is written as float32 in the layout of the inputs, LSE as float32 [B, Hq, Sq] in
either layout. Both files are written whole or not at all, even after SIGHUP, SIGINT or
SIGTERM. With --o - (or /dev/stdout) the plan is printed on standard error. Inputs must be
regular files; their size is checked before they are read.

` + strings.TrimPrefix(optionHelp, "\n") + gradientHelp + `
"vkattn help output" says how output files are written, "vkattn help device" what --device
takes.

Exit codes: 0 written, 1 a wrong result with --verify, 2 bad input, 3 the request is
unsupported or does not fit the memory, 4 device failure, or a device that hangs
(--timeout)` + signalHelp,
		Example: `  vkattn run --q q.npy --k k.npy --v v.npy --o o.npy --causal bottom-right
  vkattn run --q q.npy --k k.npy --v v.npy --o o.npy --lse lse.npy --device cpu --verify`,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := o.optionFlags.read(); err != nil {
				return err
			}
			if err := checkTimeout(c.Flags(), o.timeout); err != nil {
				return err
			}
			if err := o.readTableGradients(); err != nil {
				return err
			}
			changed := c.Flags().Changed
			for _, name := range []string{"q", "k", "v", "o"} {
				if !o.has(name) && (name != "v" || !changed("v-dim")) && (name != "o" || !o.wanted() || changed("o")) {
					return badInputf("--%s is needed", name)
				}
			}
			for _, t := range o.targets(false) {
				if path := o.paths[t.flag]; *path == "-" {
					*path = "/dev/stdout"
				}
			}
			if err := o.optionConflict(changed); err != nil {
				return err
			}
			if err := o.gradientConflict(); err != nil {
				return err
			}
			return flagtext.Run.Error(a.run(c.Context(), &o))
		},
	}
	o.add(c.Flags())
	return c
}

func (o *runFlags) add(f *pflag.FlagSet) {
	f.SortFlags = false
	o.paths.add(f, tensorFiles...)
	o.paths.addOutputs(f, false)
	f.Var(layoutFlag(&o.bshd, "bhsd", "bshd"), "layout", "order of the axes in the files: bhsd or bshd")
	f.Var(parsed[attention.Scale]{to: &o.scale, parse: parseScale, kind: "float"}, "scale",
		"factor of Q K^T (default 1/sqrt(Dqk))")
	f.StringVar(&o.device, "device", "auto", "auto, cpu, an index, a UUID or part of a name"+withoutVulkan)
	f.Var(&o.tier, "tier", "auto, no-cuda, cpu, scalar, coopmat, coopmat2, cubin or cuda")
	f.Var(&o.tuning, "tuning", "auto (use tiles that vkattn tune stored), off (use the heuristic's tiles) or on "+
		"(tune first)")
	f.BoolVar(&o.verify, "verify", false, "compare rows with the float64 reference for a second or two; write "+
		"nothing if one is wrong")
	addTimeout(f, &o.timeout, "writes nothing and ends")
	f.BoolVar(&o.json, "json", false, "print the plan and the result as JSON")
	o.paths.add(f, optionFiles...)
	o.optionFlags.add(f)
	o.paths.add(f, gradientFiles...)
	o.paths.addOutputs(f, true)
	f.StringArrayVar(&o.gradients, "dtable", nil, "`name=file` of the gradient of a table of floats of --score-mod; once for each")
	f.BoolVar(&o.f32, "f32-gradients", false, "keep --dq, --dk and --dv in float32, not rounded to the storage type; "+
		"tiers cuda and cubin do not with f16 and bf16")
}

// result is what `vkattn run --json` prints.
type result struct {
	Plan     *attention.Plan         `json:"plan,omitempty"`          // unless O was read from a file
	Backward *attention.BackwardPlan `json:"backward_plan,omitempty"` // if a gradient was computed
	Device   string                  `json:"device"`
	fields.Call
	Scale     float32           `json:"scale"`
	Layout    string            `json:"layout"`
	Options   []string          `json:"options,omitempty"` // flags of optionFlags that are set
	Verified  string            `json:"verified,omitempty"`
	Output    string            `json:"o,omitempty"`
	LSE       string            `json:"lse,omitempty"`
	Gradients map[string]string `json:"gradients,omitempty"` // output files by flag
	Seconds   float64           `json:"seconds"`             // with transfers to and from the device, without file I/O
}

func (a *app) run(ctx context.Context, o *runFlags) error {
	if err := checkPaths(o); err != nil {
		return err
	}
	in, err := openInputs(o)
	if err != nil {
		return err
	}
	defer in.close()
	if err := in.config.Validate(); err != nil {
		var field *attention.ShapeError
		if errors.As(err, &field) && !strings.HasPrefix(field.Field, "HeadDim") {
			return badInput(err)
		}
		// The files agree, but no tier supports these head dims.
		return unsupportedf("%w", err)
	}
	a.timeout = o.timeout
	dev, err := a.openAny(o.device, []attention.Tier{o.tier}, needOf(o.tier), fmt.Sprintf("tier %v", o.tier))
	if err != nil {
		return err
	}
	defer func() { closeAny(dev) }()
	op, err := attention.New(dev, in.config)
	if auto := o.device == "" || strings.EqualFold(o.device, "auto"); auto && o.tier.Auto() && cudapath.ContextOf(dev) != nil &&
		errors.Is(err, attention.ErrUnsupported) {
		fmt.Fprintf(a.stderr, "vkattn: %s; computing on the CPU\n", flagtext.OneLine(err.Error()))
		closeAny(dev)
		dev = nil
		op, err = attention.New(nil, in.config)
	}
	if err != nil {
		return err
	}
	defer func() { _ = op.Close() }()
	var plan attention.Plan
	if in.planned() && !o.has("o-in") {
		if plan, err = op.Plan(in.shape); err != nil {
			return err
		}
	}
	backward, err := in.backwardPlan(op)
	if err != nil {
		return err
	}
	if dev != nil {
		scratch := plan.Bytes - min(plan.Bytes, in.memory().arguments)
		if backward != nil {
			scratch = max(scratch, backward.ScratchBytes) // the device lends it to one after the other
		}
		if err := in.room(dev, scratch); err != nil {
			return err
		}
	}
	// Outputs that cannot be written are refused before the work. They are created
	// after it: a driver that crashes the process leaves no file.
	if err := probeOutputs(o); err != nil {
		return err
	}
	p, err := in.load()
	if err != nil {
		return err
	}
	stopwatch := bench.Stopwatch()
	if dev != nil {
		err = p.onDevice(ctx, dev, op)
	} else if err = p.setPlans(op, p.args); err == nil {
		err = p.compute(ctx, op, nil, p.args)
	}
	if err != nil {
		return err
	}
	p.took = stopwatch()
	if err := errors.Join(ctx.Err(), validated(dev.Vulkan())); err != nil { // the CPU tier does not look at ctx
		return err
	}
	return a.finish(ctx, dev, o, p)
}

// finish verifies what was computed if --verify is set, writes it and prints the plans.
func (a *app) finish(ctx context.Context, dev *attention.Device, o *runFlags, p *runProblem) error {
	verdict, err := verifyRun(o, p)
	if err != nil {
		return err
	}
	report := a.report(o)
	if err := a.write(ctx, o, p); err != nil {
		return err
	}
	if !o.json {
		lines := p.planLines(dev)
		if verdict != "" {
			lines = append(lines, "verified: "+verdict)
		}
		e := &errWriter{w: report}
		for _, line := range lines {
			e.printf("%s\n", markdown.Paragraph(line))
		}
		return e.err
	}
	return bench.WriteJSON(report, result{Plan: p.forward, Backward: p.backward, Device: deviceLabel(dev),
		Call: fields.Of(p.in.shape, p.in.config), Scale: p.in.config.ScaleValue(), Layout: o.layout(), Options: o.used(), Verified: verdict,
		Output: o.of("o"), LSE: o.of("lse"), Gradients: o.gradientPaths(), Seconds: p.took.Seconds()})
}

// report is where the plan is printed: standard error if an output is written to
// standard output, else standard output.
func (a *app) report(o *runFlags) io.Writer {
	for _, t := range o.targets(false) {
		if target, err := atomicfile.Resolve(o.of(t.flag)); err == nil && target.Stdout() {
			return a.stderr
		}
	}
	return a.stdout
}

// verifyRun verifies the result if --verify is set. It returns the verdict as text; a
// wrong result is an error.
func verifyRun(o *runFlags, p *runProblem) (string, error) {
	if !o.verify {
		return "", nil
	}
	var text []string
	judge := func(v *accuracy.Verdict, err error, what, prefix string) error {
		if err == nil && !v.Pass() {
			err = fmt.Errorf("wrong %s: %v", what, v)
		}
		if err == nil {
			text = append(text, prefix+v.String())
		}
		return err
	}
	cfg := problem.Config(p.in.config)
	if !o.has("o-in") {
		v, err := accuracy.Verify(cfg, p.args.Args, accuracy.Options{})
		if err := judge(v, err, "result", ""); err != nil {
			return "", err
		}
	}
	// Without sequences only sums over the batches have a gradient to judge.
	if o.wanted() && (p.in.shape.B > 0 || o.has("dbias") || o.has("dsinks") || len(o.outputs) > 0) {
		v, err := accuracy.VerifyBackward(cfg, p.args, accuracy.Options{})
		if err := judge(v, err, "gradients", "gradients "); err != nil {
			return "", err
		}
	}
	return strings.Join(text, "; "), nil
}

// probeOutputs returns an error if an output cannot be created. It leaves no file.
func probeOutputs(o *runFlags) error {
	for _, t := range o.targets(false) {
		if err := atomicfile.Check(o.of(t.flag)); err != nil {
			return badInputf("--%s %s: %w", t.flag, o.of(t.flag), err)
		}
	}
	return nil
}

// write writes all outputs or none.
func (a *app) write(ctx context.Context, o *runFlags, p *runProblem) error {
	var set atomicfile.Set
	a.onInterrupt.add(set.Discard)
	defer set.Discard()
	for _, t := range o.targets(false) {
		w, err := addOutput(&set, "--"+t.flag, o.of(t.flag))
		if err != nil {
			return err
		}
		if err := npy.Write(w, p.array(&t)); err != nil {
			return fmt.Errorf("writing %w", err)
		}
	}
	if err := set.Commit(ctx); err != nil {
		return fmt.Errorf("writing %w", err)
	}
	return nil
}

// layout is the order of the axes in the files.
func (o *runFlags) layout() string { return layoutName(o.bshd, "bhsd", "bshd") }

// parseScale parses the value of --scale.
func parseScale(text string) (attention.Scale, error) {
	v, err := strconv.ParseFloat(text, 32)
	if err != nil || math.IsNaN(v) || math.IsInf(v, 0) {
		return attention.Scale{}, errors.New("want a finite number that a float32 holds")
	}
	return attention.ScaleOf(float32(v)), nil
}
