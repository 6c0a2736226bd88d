package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"vkattn/attention"
	"vkattn/internal/problem"
)

const gradientHelp = `
Gradients. --do is the gradient of a loss with respect to O, --dlse the gradient with
respect to LSE. With --do, run writes each gradient that has an output file, as float32:
--dq, --dk and --dv in the layout and packing of Q, K and V, --dbias in the shape of
--bias, summed over its axes of size 1, --dsinks as [Hq], and --dtable in the shape of its
table: --dtable bias=dbias.npy with --table bias=bias.npy. For grouped heads dK and dV are
sums over the query heads of the group. run first computes O and LSE, unless --o-in
and --lse-in give them. --o is optional if a gradient is written. A row that attends to
nothing has gradient 0. dQ, dK and dV are rounded to the storage type first: above 65504
an f16 gradient is Inf. --f32-gradients keeps them in float32. --verify compares
gradients too. Paged and quantized K and V have no gradients.
`

// gradientConflict returns an error for flags of gradients that need or exclude others.
func (o *runFlags) gradientConflict() error {
	if o.f32 && !o.has("dq") && !o.has("dk") && !o.has("dv") {
		return badInputf("--f32-gradients needs --dq, --dk or --dv")
	}
	if !o.wanted() {
		if some := o.given(gradientFiles); len(some) > 0 {
			return badInputf("%s needs an output: --dq, --dk, --dv, --dbias, --dsinks or --dtable", some[0])
		}
		return nil
	}
	if err := cmp.Or(needs(o.has, "o-in", "lse-in"), needs(o.has, "lse-in", "o-in"), excludes(o.has, "o", "o-in"),
		excludes(o.has, "lse", "lse-in"), needs(o.has, "dbias", "bias"), needs(o.has, "dsinks", "sinks")); err != nil {
		return err
	}
	switch {
	case !o.has("do"):
		return badInputf("--do is needed with --%s", o.targets(true)[0].flag)
	case o.has("block-table"):
		return unsupportedf("--block-table has no gradients: give K and V padded or packed")
	case o.call.KeyType != attention.KVSame:
		return unsupportedf("--kv-dtype %v has no gradients: give K and V as floats", problem.KVName(o.call.KeyType, o.call.ValueType))
	}
	return nil
}

// gradientPaths are the output files of gradients by flag, for --json.
func (o *runFlags) gradientPaths() map[string]string {
	out := map[string]string{}
	for _, t := range o.targets(true) {
		out[t.flag] = o.of(t.flag)
	}
	return out
}

// dense are the axes of a tensor without gaps: V may lie within K.
func (in *runInputs) dense(i int) axes {
	a := in.axes[i]
	a.pitch = a.dim
	return a
}

// planned reports whether the shape alone gives the plan, before the memory is allocated. With options
// the plan depends on more. A call without sequences has no plan of its shape.
func (in *runInputs) planned() bool { return !in.special && in.shape.B > 0 }

// backwardPlan plans the gradients of a run without options, before its memory is
// allocated. It returns nil if no gradient is wanted.
func (in *runInputs) backwardPlan(op *attention.Op) (*attention.BackwardPlan, error) {
	if !in.o.wanted() || !in.planned() {
		return nil, nil
	}
	plan, err := op.PlanBackward(in.shape)
	return &plan, err
}

// compute runs the call on host memory, or on a device for a stream. barrier orders the
// backward pass after the forward pass.
func (p *runProblem) compute(ctx context.Context, op *attention.Op, s *attention.Stream, a attention.BackwardArgs) error {
	if !p.in.o.has("o-in") {
		if err := op.Forward(s, a.Args); err != nil {
			return err
		}
	}
	if !p.in.o.wanted() {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return op.Backward(s, a)
}

// setPlans sets the plans of the call as it was placed: the forward plan unless O was read
// from a file, the backward plan if a gradient is wanted.
func (p *runProblem) setPlans(op *attention.Op, a attention.BackwardArgs) error {
	if !p.in.o.has("o-in") {
		plan, err := op.PlanFor(a.Args)
		if err != nil {
			return err
		}
		p.forward = &plan
	}
	if p.in.o.wanted() {
		plan, err := op.PlanBackwardFor(a)
		if err != nil {
			return err
		}
		p.backward = &plan
	}
	return nil
}

// planLines are the lines that run prints about its plans.
func (p *runProblem) planLines(dev *attention.Device) (lines []string) {
	on := ""
	if dev != nil { // without one the plan says so
		on = ", on " + deviceLabel(dev)
	}
	if p.forward != nil {
		lines = append(lines, fmt.Sprintf("plan: %v%s", *p.forward, on))
	}
	if p.backward != nil {
		lines = append(lines, fmt.Sprintf("backward: %v%s", *p.backward, on))
	}
	return lines
}

// readTableGradients reads the output files of --dtable.
func (o *runFlags) readTableGradients() error {
	names, dims := o.tables.Names()
	for _, text := range o.gradients {
		name, path, _ := strings.Cut(text, "=")
		flag, at := "dtable "+name, slices.Index(names, name)
		switch {
		case name == "" || path == "":
			return badInputf("--dtable %s: want name=file", text)
		case o.paths[flag] != nil:
			return badInputf("--%s is given twice", flag)
		case at < 0:
			return badInputf("--%s needs --table %s=file", flag, name)
		}
		o.paths[flag] = &path
		of := len(o.outputs)
		o.outputs = append(o.outputs, outputFile{flag: flag, gradient: true, table: name, as: single,
			shape: func(*runInputs) fileShape { return fileShape{axes: dims[at]} },
			host:  func(a *attention.BackwardArgs) *[]byte { return &a.DTables[of].Host }})
	}
	return nil
}
