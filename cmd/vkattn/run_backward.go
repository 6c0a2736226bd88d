package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/spf13/pflag"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/npy"
	"vkattn/internal/hostmem"
	"vkattn/vk"
)

// gradientFlags are the flags of `vkattn run` for gradients.
type gradientFlags struct {
	dO, dLSE, oIn, lseIn      string // inputs
	dQ, dK, dV, dBias, dSinks string // outputs
	f32                       bool   // dQ, dK and dV are not rounded to the storage type
}

func (g *gradientFlags) add(f *pflag.FlagSet) {
	f.StringVar(&g.dO, "do", "", "gradient of O, in its shape; floats in a `file`")
	f.StringVar(&g.dLSE, "dlse", "", "gradient of LSE, in its shape; floats in a `file` (default: 0)")
	f.StringVar(&g.oIn, "o-in", "", "O of an earlier forward pass, which run then does not compute; floats in a `file`; needs --lse-in")
	f.StringVar(&g.lseIn, "lse-in", "", "LSE of the same forward pass; floats in a `file`")
	f.StringVar(&g.dQ, "dq", "", "output `file` of the gradient of Q; gradients need --do")
	f.StringVar(&g.dK, "dk", "", "output `file` of the gradient of K")
	f.StringVar(&g.dV, "dv", "", "output `file` of the gradient of V")
	f.BoolVar(&g.f32, "f32-gradients", false, "keep --dq, --dk and --dv in float32, not rounded to the storage type; tiers cuda and cubin do not with f16 and bf16")
	f.StringVar(&g.dBias, "dbias", "", "output `file` of the gradient of --bias")
	f.StringVar(&g.dSinks, "dsinks", "", "output `file` of the gradient of --sinks")
}

const gradientHelp = `
Gradients. --do is the gradient of a loss with respect to O, --dlse the gradient with
respect to LSE. With --do, run writes each gradient that has an output file, as float32:
--dq, --dk and --dv in the layout and packing of Q, K and V, --dbias in the shape of
--bias, summed over its axes of size 1, and --dsinks as [Hq]. For grouped heads dK and dV
are sums over the query heads of the group. run first computes O and LSE, unless --o-in
and --lse-in give them. --o is optional if a gradient is written. A row that attends to
nothing has gradient 0. dQ, dK and dV are rounded to the storage type first: above 65504
an f16 gradient is Inf. --f32-gradients keeps them in float32. --verify compares
gradients too. Paged and quantized K and V have no gradients.
`

// wanted reports whether a gradient has an output file.
func (g *gradientFlags) wanted() bool { return len(given(g.outputs()...)) > 0 }

func (g *gradientFlags) inputs() []inputFile {
	return []inputFile{{"do", g.dO}, {"dlse", g.dLSE}, {"o-in", g.oIn}, {"lse-in", g.lseIn}}
}

func (g *gradientFlags) outputs() []inputFile {
	return []inputFile{{"dq", g.dQ}, {"dk", g.dK}, {"dv", g.dV}, {"dbias", g.dBias}, {"dsinks", g.dSinks}}
}

// conflict returns an error for flags of gradients that need or exclude others.
func (g *gradientFlags) conflict(o *runFlags, changed func(string) bool) error {
	if g.f32 && g.dQ == "" && g.dK == "" && g.dV == "" {
		return badInputf("--f32-gradients needs --dq, --dk or --dv")
	}
	if !g.wanted() {
		if some := given(g.inputs()...); len(some) > 0 {
			return badInputf("%s needs an output: --dq, --dk, --dv, --dbias or --dsinks", some[0])
		}
		return nil
	}
	switch {
	case g.dO == "":
		return badInputf("--do is needed with %s", given(g.outputs()...)[0])
	case g.oIn != "" && g.lseIn == "":
		return badInputf("--o-in needs --lse-in")
	case g.lseIn != "" && g.oIn == "":
		return badInputf("--lse-in needs --o-in")
	case g.oIn != "" && o.o != "":
		return badInputf("--o and --o-in exclude one another")
	case g.oIn != "" && o.lse != "":
		return badInputf("--lse and --lse-in exclude one another")
	case g.dBias != "" && o.bias == "":
		return badInputf("--dbias needs --bias")
	case g.dSinks != "" && o.sinks == "":
		return badInputf("--dsinks needs --sinks")
	case o.table != "":
		return unsupportedf("--block-table has no gradients: give K and V padded or packed")
	case o.kv != attention.KVSame:
		return unsupportedf("--kv-dtype %v has no gradients: give K and V as floats", o.kv)
	}
	return nil
}

// targets are the output files of gradients.
func (g *gradientFlags) targets() (list []target) {
	for _, t := range []target{
		{"dq", g.dQ, func(p *problem) *npy.Array { return p.gradient(&p.args.DQ, p.in.axes[0]) }},
		{"dk", g.dK, func(p *problem) *npy.Array { return p.gradient(&p.args.DK, p.in.axes[1]) }},
		{"dv", g.dV, func(p *problem) *npy.Array { return p.gradient(&p.args.DV, p.in.dense(2)) }},
		{"dbias", g.dBias, func(p *problem) *npy.Array {
			return &npy.Array{DType: npy.Float32, Shape: p.in.files["bias"].Shape, Data: p.args.DBias.Host}
		}},
		{"dsinks", g.dSinks, func(p *problem) *npy.Array {
			return &npy.Array{DType: npy.Float32, Shape: []int{p.in.shape.Hq}, Data: p.args.DSinks.Host}
		}},
	} {
		if t.path != "" {
			list = append(list, t)
		}
	}
	return list
}

// paths are the output files of gradients by flag, for --json.
func (g *gradientFlags) paths() map[string]string {
	out := map[string]string{}
	for _, f := range g.outputs() {
		if f.path != "" {
			out[f.flag] = f.path
		}
	}
	return out
}

// dense are the axes of a tensor without gaps: V may lie within K.
func (in *runInputs) dense(i int) axes {
	a := in.axes[i]
	a.pitch = a.dim
	return a
}

// gradient is a gradient as float32 in the layout of its input.
func (p *problem) gradient(t *attention.Tensor, a axes) *npy.Array {
	packed := p.in.o.cuK != ""
	if t == &p.args.DQ {
		packed = p.in.o.cuQ != ""
	}
	return &npy.Array{DType: npy.Float32, Shape: a.shape(packed, a.dim), Data: convert(t.Host, p.in.config.GradientType(), attention.F32)}
}

// readGradients checks the shapes of the files that only a backward pass has.
func (in *runInputs) readGradients() error {
	o := in.outputAxes()
	want := map[string][]int{"do": o.shape(in.o.cuQ != "", o.dim), "dlse": in.lseShape()}
	want["o-in"], want["lse-in"] = want["do"], want["dlse"]
	for _, f := range in.o.gradientFlags.inputs() {
		if file := in.files[f.flag]; file != nil && !slices.Equal(file.Shape, want[f.flag]) {
			return wrong(f.flag, "shape %v, want %v", file.Shape, want[f.flag])
		}
	}
	return nil
}

// lseShape is the shape of the file of LSE.
func (in *runInputs) lseShape() []int {
	a := in.outputAxes()
	if in.o.cuQ != "" {
		return []int{a.heads, a.rows}
	}
	return []int{a.batch, a.heads, a.rows}
}

// loadGradients reads the files that readGradients checked and allocates the gradients,
// 0 where the kernel writes nothing.
func (in *runInputs) loadGradients(a *attention.BackwardArgs) error {
	to := in.config.DType
	for _, t := range []struct {
		flag   string
		tensor *attention.Tensor
		dtype  attention.DType
	}{{"do", &a.DO, to}, {"dlse", &a.DLSE, attention.F32}, {"o-in", &a.O, to}, {"lse-in", &a.LSE, attention.F32}} {
		f := in.files[t.flag]
		if f == nil {
			continue
		}
		array, err := f.Load()
		if err != nil {
			return wrong(t.flag, "%w", err)
		}
		t.tensor.Host = convert(array.Data, fileType(array.DType), t.dtype)
		if t.dtype == to && (t.flag == "do" || t.flag == "o-in") {
			t.tensor.Strides = in.outputAxes().strides()
		}
	}
	g := &in.o.gradientFlags
	for i, t := range []struct {
		path   string
		tensor *attention.Tensor
	}{{g.dQ, &a.DQ}, {g.dK, &a.DK}, {g.dV, &a.DV}} {
		if t.path != "" {
			axes := in.dense(i)
			*t.tensor = attention.Tensor{Strides: axes.strides(), Host: make([]byte, axes.elements()*int64(in.config.GradientType().Size()))}
		}
	}
	if g.dBias != "" {
		shape := in.files["bias"].Shape
		a.DBias = attention.Tensor{Strides: attention.BHSD(shape[1], shape[2], shape[3]), Host: make([]byte, 4*int64(shape[0])*int64(shape[1])*int64(shape[2])*int64(shape[3]))}
	}
	if g.dSinks != "" {
		a.DSinks.Host = make([]byte, 4*in.shape.Hq)
	}
	return nil
}

// elements is the number of elements of a dense tensor.
func (a axes) elements() int64 { return int64(a.batch) * int64(a.heads) * int64(a.rows) * int64(a.dim) }

// gradientMemory adds the memory of the outputs of a backward pass.
func (in *runInputs) gradientMemory(keep, pass func(...uint64)) {
	g, to := &in.o.gradientFlags, in.config.GradientType()
	for i, path := range []string{g.dQ, g.dK, g.dV} {
		if path == "" {
			continue
		}
		a := in.axes[i]
		n := hostmem.Product(a.batch, a.heads, a.rows, a.dim)
		keep(hostmem.Product(n, uint64(to.Size())))
		if to != attention.F32 {
			pass(hostmem.Product(n, 4))
		}
	}
	if f := in.files["bias"]; f != nil && g.dBias != "" {
		keep(hostmem.Product(f.Bytes()/uint64(f.DType.Size()), 4))
	}
	if g.dSinks != "" {
		keep(hostmem.Product(in.axes[0].heads, 4))
	}
}

// backwardPlan plans the gradients of a run without options, before its memory is
// allocated. It returns nil if no gradient is wanted.
func (in *runInputs) backwardPlan(op *attention.Op) (*attention.BackwardPlan, error) {
	if !in.o.wanted() || in.special {
		return nil, nil
	}
	plan, err := op.PlanBackward(in.shape)
	return &plan, err
}

// compute runs the call on host memory, or on a device for a stream. barrier orders the
// backward pass after the forward pass.
func (p *problem) compute(ctx context.Context, op *attention.Op, s *vk.Stream, a attention.BackwardArgs) error {
	if p.in.o.oIn == "" {
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
	if s != nil {
		if err := s.Barrier(); err != nil {
			return err
		}
	}
	return op.Backward(s, a)
}

// plans returns the plans of the call as it was placed: the forward plan unless O was read
// from a file, the backward plan if a gradient is wanted.
func (p *problem) plans(op *attention.Op, a attention.BackwardArgs) (forward *attention.Plan, backward *attention.BackwardPlan, err error) {
	if p.in.o.oIn == "" {
		plan, err := op.PlanFor(a.Args)
		if err != nil {
			return nil, nil, err
		}
		forward = &plan
	}
	if p.in.o.wanted() {
		plan, err := op.PlanBackwardFor(a)
		if err != nil {
			return nil, nil, err
		}
		backward = &plan
	}
	return forward, backward, nil
}

// planLines are the lines that run prints about its plans.
func planLines(forward *attention.Plan, backward *attention.BackwardPlan, dev *vk.Device) (lines []string) {
	on := ""
	if dev != nil { // without one the plan says so
		on = ", on " + deviceLabel(dev)
	}
	if forward != nil {
		lines = append(lines, fmt.Sprintf("plan: %v%s", *forward, on))
	}
	if backward != nil {
		lines = append(lines, fmt.Sprintf("backward: %v%s", *backward, on))
	}
	return lines
}
