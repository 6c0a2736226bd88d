package cudapath

import (
	"fmt"
	"sync"

	"vkattn/internal/backend"
	"vkattn/internal/plan"
	"vkattn/internal/problem"
	"vkattn/internal/tensors"
)

// The operations of a CUDA device without Vulkan.

// Merge implements backend.Kernels.
func (d *device) Merge(backend.MergeConfig) (backend.Merge, error) {
	return nil, fmt.Errorf("%w: %v was opened without Vulkan, and tier cuda has no kernel that merges states", problem.ErrUnsupported, d)
}

// Attention implements backend.Kernels. It refuses a Config that neither the forward nor the backward kernels compute.
func (d *device) Attention(cfg problem.Config) (backend.Attention, error) {
	if err := plan.CheckScale(&cfg); err != nil {
		return nil, err
	}
	o := &operation{d: d, cfg: cfg, factors: plan.FactorsOf(cfg), on: plan.CUDADevice{CUDAChooser: chooser{d.c}, Name: d.c.info.Name}}
	var a problem.BackwardArgs
	a.Shape = problem.Shape{B: 1, Hq: 1, Sq: 1, Sk: 1}
	_, err := o.Plan(a.Args)
	if err != nil && cfg.KeyType == problem.KVSame && (cfg.Window.Given() || cfg.Softcap != 0) { // options of the backward kernels
		_, err = o.PlanBackward(a)
	}
	if err != nil {
		return nil, err
	}
	return o, nil
}

// chooser implements problem.CUDAChooser.
type chooser struct{ c *Context }

func (x chooser) Choose(p problem.CUDAProblem) (problem.CUDAChoice, error) {
	c := x.c
	k, why := c.table.chooseDecode(&c.info, &p)
	switch {
	case p.KV != problem.KVSame && !p.KV.Latent() && why != "":
		return problem.CUDAChoice{}, unsupported("choose a kernel", "%s", why)
	case why != "" || p.KV == problem.KVSame && (p.Kernel != "" || !decodesFaster(&c.info, &p)):
		return c.choose(&p)
	}
	return problem.CUDAChoice{Kernel: c.kernelOf(k), Name: k.Entry, Family: k.Family, Rows: decodeHeads, Cols: uint32(k.Cols), SharedBytes: uint64(k.Shared),
		Resident: uint64(c.info.SMs * k.Blocks), StateDim: k.D}, nil
}

func (x chooser) ChooseBackward(p problem.CUDABackwardProblem) (problem.CUDABackwardChoice, error) {
	return x.c.chooseBackward(&p)
}

// maxPlans bounds the cached plans of an operation.
const maxPlans = 1024

// operation implements backend.Attention.
type operation struct {
	d       *device
	cfg     problem.Config
	factors plan.ScoreFactors
	on      plan.CUDADevice

	mu       sync.RWMutex
	forward  map[plan.Request]planned
	backward map[plan.BackwardRequest]*backwardKernels
}

// planned is the kernel of a forward call, the splits of a decode kernel, and the bytes of the workspace.
type planned struct {
	*kernel
	splits  int
	scratch uint64
}

func (o *operation) Close() error { return nil } // kernels are the context's

// layouts returns the layouts of a call's tensors; nil of a shape.
func (o *operation) layouts(l *tensors.Layouts, a *problem.Args) (*tensors.Layouts, error) {
	if !a.Q.Given() {
		return nil, nil
	}
	if err := l.Check(&o.cfg, a); err != nil {
		return l, err
	}
	return l, plan.CheckSlots(a)
}

func (o *operation) backwardLayouts(l *tensors.BackwardTensors, a *problem.BackwardArgs) (*tensors.BackwardTensors, error) {
	if !a.Q.Given() {
		return nil, nil
	}
	return l, l.CheckAll(&o.cfg, a)
}

func (o *operation) Plan(a problem.Args) (problem.Plan, error) {
	var l tensors.Layouts
	given, err := o.layouts(&l, &a)
	if err != nil {
		return problem.Plan{}, err
	}
	r := o.on.Request(&o.cfg, &a, given)
	c, err := o.on.Make(&o.cfg, &r)
	return c.Plan, err
}

func (o *operation) PlanBackward(a problem.BackwardArgs) (problem.BackwardPlan, error) {
	var l tensors.BackwardTensors
	given, err := o.backwardLayouts(&l, &a)
	if err != nil {
		return problem.BackwardPlan{}, err
	}
	r := o.on.BackwardRequest(&o.cfg, &a, given)
	c, err := o.on.MakeBackward(&o.cfg, &r)
	return c.BackwardPlan, err
}

func (o *operation) Prepare(a problem.Args) error {
	var l tensors.Layouts
	given, err := o.layouts(&l, &a)
	if err != nil {
		return err
	}
	r := o.on.Request(&o.cfg, &a, given)
	for {
		k, err := o.kernelOf(nil, &r)
		if err != nil {
			return err
		}
		if k.scratch > 0 {
			if err := o.d.prepareWorkspace(k.scratch); err != nil {
				return err
			}
		}
		if given != nil || !r.VInK || o.cfg.KeyType.Latent() {
			return nil
		}
		r.VInK = false // a shape stands for calls with V in memory of its own too
	}
}

func (o *operation) PrepareBackward(a problem.BackwardArgs) error {
	var l tensors.BackwardTensors
	given, err := o.backwardLayouts(&l, &a)
	if err != nil {
		return err
	}
	r := o.on.BackwardRequest(&o.cfg, &a, given)
	b, err := o.kernelsOf(nil, &r)
	if err != nil {
		return err
	}
	return o.d.prepareWorkspace(b.workspace(&r.Shape, r.TotalQ))
}

// kernelOf finds or loads the kernel of a request. s is the stream of a call, nil if there is none.
func (o *operation) kernelOf(s *deviceStream, r *plan.Request) (planned, error) {
	o.mu.RLock()
	k := o.forward[*r]
	o.mu.RUnlock()
	if k.kernel != nil {
		return k, nil
	}
	c, err := o.on.Make(&o.cfg, r)
	if err != nil {
		return k, err
	}
	k = planned{c.CUDA.(*kernel), c.Splits, c.WorkspaceBytes}
	if err := load1(s, k.kernel); err != nil {
		return k, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.forward == nil || len(o.forward) >= maxPlans {
		o.forward = map[plan.Request]planned{}
	}
	o.forward[*r] = k
	return k, nil
}

// load1 loads a kernel, unless the stream of the call is being captured.
func load1(s *deviceStream, k *kernel) error {
	if s != nil && !k.ready.Load() {
		if err := s.notCaptured(k.Entry, "the call loads the kernel: make one like it, or Prepare, before"); err != nil {
			return err
		}
	}
	if err := k.Load(); err != nil {
		return fmt.Errorf("attention: kernel %s: %w", k.Entry, err)
	}
	return nil
}

// kernelsOf is kernelOf for gradients.
func (o *operation) kernelsOf(s *deviceStream, r *plan.BackwardRequest) (*backwardKernels, error) {
	o.mu.RLock()
	b := o.backward[*r]
	o.mu.RUnlock()
	if b != nil {
		return b, nil
	}
	c, err := o.on.MakeBackward(&o.cfg, r)
	if err != nil {
		return nil, err
	}
	b = c.CUDA.(*backwardKernels)
	for _, k := range b.kernels {
		if err := load1(s, k); err != nil {
			return nil, err
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.backward == nil || len(o.backward) >= maxPlans {
		o.backward = map[plan.BackwardRequest]*backwardKernels{}
	}
	o.backward[*r] = b
	return b, nil
}

// Pools recycle the arguments of kernels, so that a call allocates nothing.
var (
	forwardCalls  = sync.Pool{New: func() any { return new(problem.CUDACall) }}
	backwardCalls = sync.Pool{New: func() any { return new(backwardCall) }}
)

type backwardCall struct {
	problem.CUDABackwardCall
	v backwardInvocation
}

func (o *operation) Forward(on backend.Stream, a problem.Args) error {
	s := on.(*deviceStream)
	var l tensors.Layouts
	given, err := o.layouts(&l, &a)
	if err != nil {
		return err
	}
	r := o.on.Request(&o.cfg, &a, given)
	k, err := o.kernelOf(s, &r)
	if err != nil || tensors.NoRows(&a) && !a.MaxLogits.Given() {
		return err
	}
	c := forwardCalls.Get().(*problem.CUDACall)
	defer func() {
		*c = problem.CUDACall{} // holds no memory
		forwardCalls.Put(c)
	}()
	plan.SetCUDACall(c, &o.cfg, &o.factors, &a, l.All())
	if k.KV != "" && !k.Latent {
		c.Decode.Splits = k.splits
		return k.launchDecode(s, c)
	}
	var v invocation
	if err := k.bind(&v, c); err != nil {
		return err
	}
	if bytes := k.workspace(&v.shape); bytes > 0 {
		if v.params.partial, err = s.scratch("Forward", bytes); err != nil {
			return err
		}
	}
	return k.launch(s.Stream, &v)
}

func (o *operation) Backward(on backend.Stream, a problem.BackwardArgs) error {
	s := on.(*deviceStream)
	var l tensors.BackwardTensors
	given, err := o.backwardLayouts(&l, &a)
	if err != nil {
		return err
	}
	r := o.on.BackwardRequest(&o.cfg, &a, given)
	b, err := o.kernelsOf(s, &r)
	if err != nil || a.B == 0 {
		return err
	}
	c := backwardCalls.Get().(*backwardCall)
	defer func() {
		*c = backwardCall{}
		backwardCalls.Put(c)
	}()
	c.CUDABackwardCall = plan.CUDABackwardCall(&o.cfg, &o.factors, &a, &l)
	if err := b.bind(&c.v, &c.CUDABackwardCall); err != nil {
		return err
	}
	if c.v.params.stats, err = s.scratch("Backward", b.workspace(&c.Shape, c.TotalQ)); err != nil {
		return err
	}
	return b.launch(s.Stream, &c.v, &c.Shape)
}
