package parallel

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"

	"vkattn/attention"
	"vkattn/attention/merge"
	"vkattn/internal/backend"
	"vkattn/internal/errs"
	"vkattn/internal/problem"
	"vkattn/vk"
)

// Op computes attention for one Config over the ranks of a group, for any Problem. Each rank
// makes its own Op with the same Config and calls the same methods in the same order with its
// own part of the tensors.
//
// A rank computes on its own device, or without one on the CPU tier. On a device the Op keeps the
// buffers that its last call allocated, for the next call.
type Op struct {
	group *Group
	home  *attention.Device
	dev   *vk.Device // nil: the CPU tier
	cfg   Config

	mu        sync.Mutex
	allocated uint64 // by the last call
	closed    bool
	pool      pool
	plans     map[[sha256.Size]byte]*planned     // at most maxPlans
	local     map[attention.Config]*attention.Op // of this rank's calls
	merges    map[merge.MergeConfig]*merge.Merge
	sums      map[merge.MergeConfig]*merge.Sum
	taken     map[taken]struct{} // at most maxPlans

	recordings recordings
	observer   func(DecodeStep) // of ObserveDecode

	// Checksums for headers, of what is the same in every call: they take some microseconds, in which
	// the device of a decode call would wait.
	config, mode, shard uint64
}

// taken is a shape that an operation of this rank computes.
type taken struct {
	cfg   attention.Config
	shape attention.Shape
}

// maxPlans bounds the cached plans, and the shapes that are taken.
const maxPlans = 64

// New makes an operation of this rank. A nil device is the CPU. Group and device stay
// the caller's and must outlive the Op. Ranks that compute on different tiers or devices are
// allowed if their Configs are the same. New exchanges nothing: a Config that differs from another rank's is found by the first call.
func New(g *Group, d *attention.Device, cfg Config) (*Op, error) {
	if err := g.usable(); err != nil {
		return nil, err
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if d == nil {
		d = attention.On(nil)
	}
	op, err := attention.New(d, cfg.Config)
	if err != nil {
		return nil, err
	}
	if backend.HomeOf(d).Backend().Kernels() != nil {
		return nil, errors.Join(fmt.Errorf("%w: several ranks need Vulkan devices or the CPU, not %v", attention.ErrUnsupported, d), op.Close())
	}
	x := &Op{group: g, home: d, dev: d.Vulkan(), cfg: cfg, plans: map[[sha256.Size]byte]*planned{},
		local: map[attention.Config]*attention.Op{cfg.Config: op}, merges: map[merge.MergeConfig]*merge.Merge{},
		sums: map[merge.MergeConfig]*merge.Sum{}, taken: map[taken]struct{}{}}
	x.config, x.shard = checksum(cfg.Config), checksum(x.Shard())
	x.mode = checksum(cfg.Mode, cfg.Inner, cfg.Order, cfg.Schedule, cfg.Machine)
	return x, nil
}

// Config returns the Config that New was given.
func (op *Op) Config() Config {
	if op == nil {
		return Config{}
	}
	return op.cfg
}

func (op *Op) usable() error {
	if op == nil || op.group == nil {
		return errs.Unmade("New")
	}
	op.mu.Lock()
	defer op.mu.Unlock()
	if op.closed {
		return errClosed
	}
	return nil
}

// Plan returns how a problem would be shared. It needs no other rank, and every rank gets the
// same Plan, if the devices of all need buffer descriptors of the same size, or none. A problem that Config.Mode
// cannot compute gives a [*ModeError].
func (op *Op) Plan(p Problem) (Plan, error) {
	if err := op.usable(); err != nil {
		return Plan{}, err
	}
	x, err := op.plan(p, op.reach())
	if err != nil {
		return Plan{}, err
	}
	plan := x.Plan // the caller's to change
	plan.Rows, plan.Keys, plan.Rejected = plan.Rows.clone(), plan.Keys.clone(), slices.Clone(plan.Rejected)
	return plan, nil
}

// ScratchBytes is the memory that the last call of Forward or Backward took on this rank in addition to its
// tensors, of which Plan tells the most of all ranks as Cost.ScratchBytes.
func (op *Op) ScratchBytes() uint64 {
	if op == nil {
		return 0
	}
	op.mu.Lock()
	defer op.mu.Unlock()
	return op.allocated
}

// plan finds or makes the plan of a problem for ranks whose kernels reach a number of bytes of a tensor.
func (op *Op) plan(p Problem, reach uint64) (*planned, error) {
	key := sha256.Sum256(p.encode(binary.LittleEndian.AppendUint64(nil, reach)))
	op.mu.Lock()
	x := op.plans[key]
	op.mu.Unlock()
	if x != nil {
		return x, nil
	}
	x, err := makePlan(&op.cfg, p.clone(), op.group.Ranks(), reach)
	if err != nil {
		return nil, err
	}
	x.split = checksumBytes(x.layout.keys.encode(x.layout.rows.encode(nil)))
	op.mu.Lock()
	defer op.mu.Unlock()
	if len(op.plans) >= maxPlans {
		clear(op.plans)
	}
	op.plans[key] = x
	return x, nil
}

// Close releases what the operation holds. The group stays open. Close is idempotent.
func (op *Op) Close() error {
	if op == nil {
		return nil
	}
	op.mu.Lock()
	defer op.mu.Unlock()
	op.closed = true
	var all []error
	for _, x := range op.local {
		all = append(all, x.Close())
	}
	for _, x := range op.merges {
		all = append(all, x.Close())
	}
	for _, x := range op.sums {
		all = append(all, x.Close())
	}
	clear(op.local)
	clear(op.merges)
	clear(op.sums)
	all = append(all, op.pool.close(), op.recordings.close())
	return errors.Join(all...)
}

// of returns this rank's operation for a Config.
func (op *Op) of(cfg attention.Config) (*attention.Op, error) {
	return made(op, op.local, cfg, attention.New)
}

// takes returns an error if this rank's operation for a Config does not compute a shape. It remembers
// those that it computes: a plan takes 10 to 20 us, which a step of decoding would wait for.
func (op *Op) takes(cfg attention.Config, shape attention.Shape) error {
	local, err := op.of(cfg) // also after Close an error
	if err != nil {
		return err
	}
	key := taken{cfg, shape}
	op.mu.Lock()
	_, known := op.taken[key]
	op.mu.Unlock()
	if known {
		return nil
	}
	if _, err := local.Plan(shape); err != nil {
		return err
	}
	op.mu.Lock()
	defer op.mu.Unlock()
	if len(op.taken) >= maxPlans {
		clear(op.taken)
	}
	op.taken[key] = struct{}{}
	return nil
}

// merge returns this rank's merge of float32 states.
func (op *Op) merge(out attention.DType) (*merge.Merge, error) {
	cfg := merge.MergeConfig{DType: out, HeadDim: op.cfg.ValueDim(), Access: op.cfg.Access, F32States: true}
	return made(op, op.merges, cfg, merge.NewMerge)
}

// sum returns this rank's sum of float32 tensors of a head dimension.
func (op *Op) sum(out attention.DType, dim int) (*merge.Sum, error) {
	cfg := merge.MergeConfig{DType: out, HeadDim: dim, Access: op.cfg.Access, F32States: true}
	return made(op, op.sums, cfg, merge.NewSum)
}

// made finds an operation of op in its cache, or makes it.
func made[C comparable, X any](op *Op, cache map[C]X, cfg C, make func(*attention.Device, C) (X, error)) (X, error) {
	op.mu.Lock()
	defer op.mu.Unlock()
	if op.closed {
		var none X
		return none, errClosed
	}
	if x, ok := cache[cfg]; ok {
		return x, nil
	}
	x, err := make(op.home, cfg)
	if err == nil {
		cache[cfg] = x
	}
	return x, err
}

// checkStream checks that a call has a stream of this rank's device, or none on the CPU tier. The default stream would be
// locked while the call waits for ranks that may have the same device.
func (op *Op) checkStream(s *attention.Stream) error {
	if op.dev != nil && s == nil {
		return errs.Invalid("parallel: a call on a device needs a stream of it")
	}
	home := backend.HomeOf(op.home)
	if _, err := home.Begin("parallel", problem.StreamBackingOf(s), s == nil); err != nil {
		return err
	}
	return home.End(s == nil, nil)
}

// checkSide checks that tensors lie where this rank computes.
func (op *Op) checkSide(list ...attention.Tensor) error {
	for _, t := range list {
		switch {
		case !t.Given():
		case op.dev == nil && t.Host == nil:
			return errs.Invalid("parallel: a tensor in device memory, where the CPU tier computes")
		case op.dev != nil && (t.Buffer == nil || t.Buffer.Device() != op.dev):
			return errs.Invalid("parallel: a tensor is not in a buffer of the operation's device")
		}
	}
	return nil
}

// call is one call of an operation on this rank.
type call struct {
	side
	*planned
	g     *Group
	ctx   context.Context
	rank  int
	group int    // of inner ranks
	u     int    // member of the group
	lse   []bool // which ranks ask for LSE
}

// run agrees with the other ranks on a call, then computes. check checks this rank's tensors;
// err is what is already wrong. lse says that this rank asks for LSE.
func (op *Op) run(ctx context.Context, s *attention.Stream, kind callKind, x *planned, lse bool, err error,
	compute func(c *call) error) error {
	h := header{kind: kind, config: op.config, mode: op.mode, lse: lse}
	if x != nil {
		shape := x.Shape
		shape.Hkv = x.KVHeads() // 0 is Hq
		h.shape, h.sequences, h.split, h.reach = checksum(shape), checksum(x.CuQ, x.CuK), x.split, x.reach
	}
	return op.group.call(ctx, h, err, nil, func(ctx context.Context, all [][]byte) error {
		rank := op.group.Rank()
		if reach := commonReach(all); reach != x.reach { // the plan of the rank that reaches least
			var err error
			if x, err = op.plan(x.Problem, reach); err != nil {
				return err
			}
		}
		defer unordered(s)()
		c := &call{side: op.newSide(s), g: op.group, ctx: ctx, planned: x, rank: rank, group: rank / x.layout.inner,
			u: rank % x.layout.inner, lse: asksForLSE(all)}
		err := compute(c)
		if err == nil || c.err != nil {
			err = c.err // the first one
		}
		if waited := c.settle(); err == nil {
			err = waited
		}
		op.mu.Lock()
		op.allocated = uint64(c.allocated)
		op.mu.Unlock()
		return errors.Join(err, c.end(err))
	})
}

// checksumOf hashes numbers.
func checksumOf(values ...int) uint64 {
	h := uint64(len(values))
	for _, x := range values {
		// The finalizer of SplitMix64: each bit of a value changes half of the bits.
		h += 0x9e3779b97f4a7c15 + uint64(x)
		h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
		h = (h ^ h>>27) * 0x94d049bb133111eb
		h ^= h >> 31
	}
	return h
}

// checksum hashes values with all their fields, for which their String methods need not have words.
func checksum(values ...any) uint64 {
	var b []byte
	for _, v := range values {
		b = fmt.Appendf(b, "%#v\x00", v)
	}
	return checksumBytes(b)
}

// checksumBytes hashes bytes.
func checksumBytes(b []byte) uint64 {
	sum := sha256.Sum256(b)
	return binary.LittleEndian.Uint64(sum[:])
}
