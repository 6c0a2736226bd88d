package bench

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"vkattn/attention"
	"vkattn/internal/ceiling"
	"vkattn/internal/operands"
	"vkattn/vk"
)

// Ceiling is a highest rate or a least time of a device. A problem with a ceiling has no
// shape; its row is timed like those of attention.
type Ceiling string

// The ceilings, which a page of vkattn help describes.
const (
	CeilingCopy     Ceiling = "copy"
	CeilingRead     Ceiling = "read"
	CeilingProducts Ceiling = "products"
	CeilingFMA      Ceiling = "fma"
	CeilingLaunch   Ceiling = "launch"
	CeilingDispatch Ceiling = "dispatch"
	CeilingBarrier  Ceiling = "barrier"
)

// moves reports whether the ceiling is a rate of memory.
func (c Ceiling) moves() bool { return c == CeilingCopy || c == CeilingRead }

// typed reports whether the ceiling depends on the storage type.
func (c Ceiling) typed() bool { return c == CeilingProducts || c == CeilingFMA }

// ceilings are the problems of suite ceilings.
func ceilings() []Problem {
	of := func(c Ceiling, dtype attention.DType) Problem {
		return Problem{Ceiling: c, Config: attention.Config{DType: dtype}}
	}
	return []Problem{of(CeilingCopy, 0), of(CeilingRead, 0), of(CeilingProducts, attention.F16),
		of(CeilingProducts, attention.BF16), of(CeilingFMA, attention.F32),
		of(CeilingLaunch, 0), of(CeilingDispatch, 0), of(CeilingBarrier, 0)}
}

// PlotCeilings lists the ceilings that pictures of problems show and that are neither among
// the problems nor known: a copy, and the products of each storage type.
func PlotCeilings(dev *vk.Device, list []Problem, knowsCopy, knowsProducts bool) (out []Problem) {
	add := func(p Problem) {
		if !slices.Contains(list, p) && !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	for _, p := range list {
		if p.Ceiling != "" {
			continue
		}
		if !knowsCopy {
			add(Problem{Ceiling: CeilingCopy})
		}
		if dtype := p.Config.DType; !knowsProducts {
			if ceiling.Supported(dev, dtype) != nil {
				dtype = attention.F32
			}
			add(productsOf(dtype))
		}
	}
	return out
}

// Peak has the highest speeds of a device. 0: not known.
type Peak struct {
	TFLOPs float64 // of products from registers
	TBs    float64 // of a copy, bytes read and written
}

// of completes the peak of a row's device and storage type by ceilings among earlier rows. A device without
// cooperative matrices of the type, and tier scalar, multiply in float32.
func (k Peak) of(r *Row, rows []*Row) Peak {
	products, fma := 0.0, 0.0
	for _, c := range rows {
		switch {
		case c.Device != r.Device:
		case c.Ceiling == CeilingCopy && k.TBs == 0:
			k.TBs = c.TBs
		case c.Ceiling == CeilingProducts && c.DType == r.DType && r.Tier != attention.TierScalar.String():
			products = c.TFLOPs
		case c.Ceiling == CeilingFMA:
			fma = c.TFLOPs
		}
	}
	k.TFLOPs = cmp.Or(k.TFLOPs, products, fma)
	return k
}

// productsOf is the ceiling of products of a storage type.
func productsOf(dtype attention.DType) Problem {
	c := CeilingProducts
	if dtype == attention.F32 {
		c = CeilingFMA
	}
	return Problem{Ceiling: c, Config: attention.Config{DType: dtype}}
}

// IsCeilings reports whether the problems of the suite are ceilings.
func (s *Suite) IsCeilings() bool { return len(s.list) > 0 && s.list[0].Ceiling != "" }

// dispatchesInARow is the number of empty dispatches that are timed as one run: a single one
// is shorter than the resolution of timestamps.
const dispatchesInARow = 200

// ceiling prepares the row of a ceiling. Products are verified: their sums must be those of
// all products that are counted. So are copies and reads.
func (g *group) ceiling(ctx context.Context, s Spec) (*candidate, *Row) {
	row := g.row(g.problem, s)
	row.Tier = ""
	c := &candidate{row: row}
	var err error
	if c.run, c.clock, err = g.ceilingRun(ctx, row); err != nil {
		g.stop(row, err)
		if errors.Is(err, ceiling.ErrWrong) {
			row.Status = Fail
		}
		return nil, row
	}
	return c, row
}

// ceilingRun returns the function that times the row, after a first run, and its clock.
func (g *group) ceilingRun(ctx context.Context, row *Row) (func(context.Context, int) ([]time.Duration, error), *deviceClock, error) {
	if row.Ceiling.moves() && g.Device.Vulkan() != nil {
		return g.memoryCeiling(ctx, row)
	}
	var kernels []*ceiling.Kernel
	var err error
	if row.Ceiling.typed() {
		kernels, err = ceiling.Products(g.Device.Vulkan(), row.DType)
	} else {
		var empty *ceiling.Kernel
		empty, err = ceiling.NewEmpty(g.Device.Vulkan())
		kernels = append(kernels, empty)
	}
	if err != nil {
		return nil, nil, err
	}
	for _, k := range kernels {
		g.closers = append(g.closers, k.Close)
	}
	stream, err := g.Device.Vulkan().NewStream(string(row.Ceiling))
	if err != nil {
		return nil, nil, err
	}
	g.closers = append(g.closers, stream.Close)
	for _, k := range kernels {
		if err := g.within(ctx, func(ctx context.Context) error {
			return operands.InTurn(func() error { return k.Verify(ctx, stream) }, func() error { return stream.Wait(ctx) })
		}); err != nil {
			return nil, nil, err
		}
	}
	clock := &deviceClock{stream: stream, stamps: g.Device.Vulkan().Caps().Limits.TimestampValidBits > 0 && row.Ceiling != CeilingLaunch}
	best, err := g.fastest(ctx, len(kernels), func(ctx context.Context, i, n int) ([]time.Duration, error) {
		return clock.timed(ctx, n, kernels[i].Record)
	})
	if err != nil {
		return nil, nil, err
	}
	kernel := kernels[best]
	row.Flops, row.Memory, row.Tile, row.Timer = kernel.Flops(), kernel.Bytes(), kernel.Tile(), clock.timer()
	row.SPIRV = modules(g.Device.Vulkan(), kernel.Module())
	inARow, record := 1, kernel.Record
	if row.Ceiling == CeilingDispatch || row.Ceiling == CeilingBarrier {
		inARow, record = dispatchesInARow, repeated(kernel, row.Ceiling == CeilingBarrier)
	}
	return func(ctx context.Context, n int) ([]time.Duration, error) {
		times, err := clock.timed(ctx, n, record)
		for i := range times {
			times[i] /= time.Duration(inARow)
		}
		return times, err
	}, clock, nil
}

// fastest returns which of several variants of the same work has the shortest run. They take
// turns for the time of a warm-up, in which clocks settle.
func (g *group) fastest(ctx context.Context, variants int,
	timed func(ctx context.Context, i, n int) ([]time.Duration, error)) (best int, err error) {
	if variants < 2 {
		return 0, nil
	}
	shortest := make([]time.Duration, variants)
	w := g.warming(false)
	for round := 0; round == 0 || w.on(); round++ {
		for i := range variants {
			var times []time.Duration
			if err := g.within(ctx, func(ctx context.Context) (err error) {
				times, err = timed(ctx, i, 2)
				return err
			}); err != nil {
				return 0, err
			}
			if t := slices.Min(times); shortest[i] == 0 || t < shortest[i] {
				shortest[i] = t
			}
		}
	}
	return slices.Index(shortest, slices.Min(shortest)), nil
}

// repeated records empty dispatches in a row, with a barrier behind each or none.
func repeated(empty *ceiling.Kernel, barriers bool) func(*vk.Stream) error {
	return func(s *vk.Stream) error {
		for range dispatchesInARow {
			if err := empty.Record(s); err != nil {
				return err
			}
			if !barriers {
				continue
			}
			if err := s.Barrier(); err != nil {
				return err
			}
		}
		return nil
	}
}

// barrierMs is the time of a barrier alone: that of an empty dispatch and a barrier without
// that of an empty dispatch. It is 0 if a row is missing.
func barrierMs(rows []*Row) float64 {
	of := func(c Ceiling) float64 {
		i := slices.IndexFunc(rows, func(r *Row) bool { return r.Ceiling == c && r.Status == OK })
		if i < 0 {
			return 0
		}
		return rows[i].Ms.Median
	}
	dispatch, both := of(CeilingDispatch), of(CeilingBarrier)
	if dispatch == 0 || both == 0 {
		return 0
	}
	return max(0, both-dispatch)
}
