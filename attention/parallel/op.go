package parallel

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"vkattn/attention"
	"vkattn/attention/internal/errs"
)

// Op computes attention for one Config over the ranks of a group, for any Problem. Each rank
// makes its own Op with the same Config and calls the same methods in the same order with its
// own part of the tensors.
//
// Ranks compute on the CPU tier, on host memory.
type Op struct {
	group *Group
	cfg   Config

	allocated uint64 // by the last call; tests read it

	mu     sync.Mutex
	closed bool
	plans  map[[sha256.Size]byte]*planned     // at most maxPlans
	local  map[attention.Config]*attention.Op // of this rank's calls
	merges map[attention.MergeConfig]*attention.Merge
}

// maxPlans bounds the cached plans.
const maxPlans = 64

// New makes an operation of this rank. The group stays the caller's and must outlive the Op.
// New exchanges nothing: a Config that differs from another rank's is found by the first call.
func New(g *Group, cfg Config) (*Op, error) {
	if err := g.usable(); err != nil {
		return nil, err
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Tier != attention.TierAuto && cfg.Tier != attention.TierCPU {
		return nil, fmt.Errorf("%w: ranks compute on tier cpu", attention.ErrUnsupported)
	}
	op, err := attention.New(nil, cfg.Config)
	if err != nil {
		return nil, err
	}
	return &Op{group: g, cfg: cfg, plans: map[[sha256.Size]byte]*planned{},
		local: map[attention.Config]*attention.Op{cfg.Config: op}, merges: map[attention.MergeConfig]*attention.Merge{}}, nil
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
// same Plan. A problem that Config.Mode cannot compute gives a [*ModeError].
func (op *Op) Plan(p Problem) (Plan, error) {
	if err := op.usable(); err != nil {
		return Plan{}, err
	}
	x, err := op.plan(p)
	if err != nil {
		return Plan{}, err
	}
	return x.Plan, nil
}

// plan finds or makes the plan of a problem.
func (op *Op) plan(p Problem) (*planned, error) {
	key := sha256.Sum256(fmt.Append(nil, p))
	op.mu.Lock()
	x := op.plans[key]
	op.mu.Unlock()
	if x != nil {
		return x, nil
	}
	x, err := makePlan(&op.cfg, p.clone(), op.group.Ranks())
	if err != nil {
		return nil, err
	}
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
	clear(op.local)
	clear(op.merges)
	return errors.Join(all...)
}

// of returns this rank's operation for a Config.
func (op *Op) of(cfg attention.Config) (*attention.Op, error) {
	op.mu.Lock()
	defer op.mu.Unlock()
	if op.closed {
		return nil, errClosed
	}
	if x := op.local[cfg]; x != nil {
		return x, nil
	}
	x, err := attention.New(nil, cfg)
	if err == nil {
		op.local[cfg] = x
	}
	return x, err
}

// merge returns this rank's merge of float32 states.
func (op *Op) merge(out attention.DType) (*attention.Merge, error) {
	cfg := attention.MergeConfig{DType: out, HeadDim: op.cfg.ValueDim(), Access: op.cfg.Access, F32States: true}
	op.mu.Lock()
	defer op.mu.Unlock()
	if op.closed {
		return nil, errClosed
	}
	if x := op.merges[cfg]; x != nil {
		return x, nil
	}
	x, err := attention.NewMerge(nil, cfg)
	if err == nil {
		op.merges[cfg] = x
	}
	return x, err
}

// call is one call of an operation on this rank.
type call struct {
	side
	*planned
	op    *Op
	g     *Group
	ctx   context.Context
	rank  int
	group int // of inner ranks
	u     int // member of the group
}

// run agrees with the other ranks on a call, then computes. check checks this rank's tensors;
// err is what is already wrong.
func (op *Op) run(ctx context.Context, kind callKind, x *planned, err error, compute func(c *call) error) error {
	h := header{kind: kind, config: checksum(op.cfg.Config), mode: checksum(op.cfg.Mode, op.cfg.Inner, op.cfg.Order, op.cfg.Machine)}
	if x != nil {
		h.shape, h.sequences, h.split = checksum(x.Shape), checksum(x.CuQ, x.CuK), checksum(x.layout.rows, x.layout.keys)
	}
	return op.group.call(ctx, h, err, func(ctx context.Context) error {
		rank := op.group.Rank()
		c := &call{op: op, g: op.group, ctx: ctx, planned: x, rank: rank, group: rank / x.layout.inner, u: rank % x.layout.inner}
		err := compute(c)
		op.allocated = uint64(c.allocated)
		return err
	})
}

// checksum hashes the printed form of values, which holds every field of a struct.
func checksum(values ...any) uint64 {
	var b []byte
	for _, v := range values {
		b = fmt.Appendf(b, "%+v\x00", v)
	}
	sum := sha256.Sum256(b)
	return binary.LittleEndian.Uint64(sum[:])
}
