package host

import (
	"math"
	"runtime"
	"sync"

	"vkattn/internal/half"
	"vkattn/internal/hostcall"
	"vkattn/internal/hostmem"
	"vkattn/internal/par"
	"vkattn/internal/problem"
	"vkattn/internal/simd"
	"vkattn/internal/tensors"
)

// Backward computes the gradients of a call in host memory, those that have an output.
// It reads O and LSE as the forward call has written them. The caller has checked a, O and
// LSE included.
//
// A unit is a sequence and key head with all query heads of its group, whose rows are
// packed: row r is of head r % group. A task is a block of keys of a unit. It loops over
// the blocks of rows, sums dK and dV, and adds to dQ, five products in all. Tasks that add
// to the same rows of dQ take turns in the order of their keys. CPUs take tasks in the order
// of a list, and a task waits only for those before it. So each sum has one order, whatever
// the number of CPUs. Where there are few tasks for the CPUs, each fold of blocks of rows is
// a task of its own; its sums are added to the others in the same order.
//
// Gradients of rows and keys past the end of their sequence, but within its range of the
// tensors, are 0. DSinks holds rowsum(dO * O) of each row, so it is as exact as O.
func Backward(cfg problem.Config, a problem.BackwardArgs) error {
	want := tensors.GradientsOf(&cfg, &a)
	if err := tensors.CheckHost("Backward", backwardBytes(&cfg, &a, want)); err != nil {
		return err
	}
	c := cpuBackward{args: &a, want: want}
	if err := c.open(&cfg); err != nil {
		return err
	}
	c.clearBias()
	c.begin()
	c.sumSinks()
	if want.Q || want.K || want.V || want.Bias || len(c.tables.list) > 0 {
		par.Each(int64(len(c.tasks)), func() func(int64) {
			w := c.worker()
			return func(i int64) {
				t := &c.tasks[i]
				w.run(&c.units[t.unit], int(t.tile), int(t.fold))
				w.addTables(&c.units[t.unit], i)
			}
		})
	}
	c.tables.store(&c)
	return nil
}

// cpuBackward is a backward call with what its tasks share.
type cpuBackward struct {
	hostcall.Call
	args       *problem.BackwardArgs
	want       tensors.GradientSet
	stored     simd.Type // Q, K, V and dO
	storedO    simd.Type
	gradient   simd.Type // dQ, dK and dV
	o, dO      tensors.HostRows
	dLSE       tensors.HostRows // if args.DLSE is given
	dQ, dK, dV tensors.HostRows // those wanted
	lse        []byte           // from element 0 on
	lseRows    int              // rows per head
	dBias      [3]int64         // strides, as those of Bias
	tables     tableSums

	units  []backwardUnit
	tasks  []backwardTask
	rows   []simd.BackwardRow // of all units
	blocks []backwardBlock    // of all units
	sums   []float32          // dQ of rows, without the scale
	parts  []float32          // sums of dK and dV of folds that are tasks
	stride int                // elements of sums per row

	mu      sync.Mutex
	workers []*cpuBackwardWorker // idle
}

// addWorker adds an idle worker for the tasks.
func (c *cpuBackward) addWorker(w *cpuBackwardWorker) {
	c.mu.Lock()
	c.workers = append(c.workers, w)
	c.mu.Unlock()
}

// worker returns an idle worker, or a new one.
func (c *cpuBackward) worker() *cpuBackwardWorker {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := len(c.workers)
	if n == 0 {
		return newCPUBackwardWorker(c)
	}
	w := c.workers[n-1]
	c.workers = c.workers[:n-1]
	return w
}

func (c *cpuBackward) open(cfg *problem.Config) (err error) {
	a := c.args
	if err := c.Call.Open(cfg, &a.Args); err != nil {
		return err
	}
	_, rows := tensors.QueryExtent(&a.Args)
	_, keys := tensors.KVExtent(&a.Args)
	d, dv := cfg.HeadDim, cfg.ValueDim()
	for _, v := range [...]struct {
		used             bool
		view             *tensors.HostRows
		tensor           *problem.Tensor
		dtype            problem.DType
		heads, rows, dim int
	}{
		{true, &c.o, &a.O, cfg.OType(), a.Hq, rows, dv},
		{true, &c.dO, &a.DO, cfg.DType, a.Hq, rows, dv},
		{a.DLSE.Given(), &c.dLSE, &a.DLSE, problem.F32, a.Hq, rows, 1},
		{c.want.Q, &c.dQ, &a.DQ, cfg.GradientType(), a.Hq, rows, d},
		{c.want.K, &c.dK, &a.DK, cfg.GradientType(), a.KVHeads(), keys, d},
		{c.want.V, &c.dV, &a.DV, cfg.GradientType(), a.KVHeads(), keys, dv},
	} {
		if v.used {
			if *v.view, err = tensors.ViewRows(*v.tensor, v.dtype, v.heads, v.rows, v.dim); err != nil {
				return err
			}
		}
	}
	c.stored, c.storedO, c.gradient, c.lseRows = simdType(cfg.DType), simdType(cfg.OType()), simdType(cfg.GradientType()), rows
	c.lse = a.LSE.Host[a.LSE.Offset*int64(problem.F32.Size()):]
	if c.want.Bias {
		c.dBias = tensors.Broadcast(a.DBias.Strides, tensors.BiasSizes(a.Bias, &a.Shape), a.Sk)
	}
	c.tables.open(c)
	c.stride = Kernels.Stride(d)
	c.openUnits()
	return nil
}

// clearBias sets dBias to 0.
func (c *cpuBackward) clearBias() {
	if !c.want.Bias {
		return
	}
	n := tensors.BiasSizes(c.Args.Bias, &c.Args.Shape)
	par.Each(int64(n[0])*int64(n[1])*int64(n[2]), func() func(int64) {
		return func(i int64) {
			row := i % int64(n[2])
			head, batch := i/int64(n[2])%int64(n[1]), i/int64(n[2])/int64(n[1])
			clear(c.args.DBias.Host[c.dBiasAt(batch, head, row)*int64(problem.F32.Size()):][:c.Args.Sk*problem.F32.Size()])
		}
	})
}

// dBiasAt returns the element offset of a row of dBias.
func (c *cpuBackward) dBiasAt(b, head, row int64) int64 {
	return c.args.DBias.Offset + b*c.dBias[0] + head*c.dBias[1] + row*c.dBias[2]
}

// begin computes the numbers of each row and block of rows, and stores the gradients of
// rows that no tile reaches.
func (c *cpuBackward) begin() {
	type piece struct{ unit, block int }
	pieces := make([]piece, 0, len(c.blocks)+len(c.units))
	for i := range c.units {
		for block := -1; block < c.units[i].blocks; block++ { // -1: what has no block
			pieces = append(pieces, piece{i, block})
		}
	}
	par.Each(int64(len(pieces)), func() func(int64) {
		w := newCPUBackwardWorker(c)
		c.addWorker(w)
		return func(i int64) {
			u := &c.units[pieces[i].unit]
			if pieces[i].block < 0 {
				w.storeZeros(u)
				return
			}
			w.beginBlock(u, pieces[i].block)
		}
	})
}

// sumSinks sums the gradient of each sink over the rows of its head, in their order.
func (c *cpuBackward) sumSinks() {
	if !c.want.Sinks {
		return
	}
	heads, group := c.Args.KVHeads(), c.Args.Group()
	par.Each(int64(c.Args.Hq), func() func(int64) {
		return func(i int64) {
			head := int(i)
			sink, _ := c.Sink(head)
			var sum float64
			for b := range c.Args.B {
				u := &c.units[b*heads+head/group]
				for r := head % group; r < u.rows; r += group {
					row := &c.rows[u.firstRow+r]
					if p := math.Exp(float64(sink) - float64(row.LSE)); p != 0 {
						sum -= p * float64(row.Factor) * float64(row.Delta)
					}
				}
			}
			at := (c.args.DSinks.Offset + i) * int64(problem.F32.Size())
			half.EncodeF32(c.args.DSinks.Host[at:], []float32{float32(sum)})
		}
	})
}

// backwardBytes is the memory of a call.
func backwardBytes(cfg *problem.Config, a *problem.BackwardArgs, want tensors.GradientSet) uint64 {
	const perRow = 40 + 1 // a simd.BackwardRow, and a share of a block
	rows := hostmem.Product(uint64(a.B), uint64(a.Hq), uint64(a.Sq))
	if a.Varlen != nil && a.Varlen.CuQ.Given() {
		rows = min(rows, hostmem.Product(uint64(a.Hq), uint64(a.Varlen.TotalQ)))
	}
	units := hostmem.Product(uint64(a.B), uint64(a.KVHeads()))
	tiles := hostmem.Product(units, tensors.RowKeys(&a.Args)/simd.BackwardKeys+1)
	total := hostmem.Sum(tensors.SequenceBytes(a.Shape), hostmem.Product(rows, perRow), hostmem.Product(units, 256), hostmem.Product(tiles, 12+4),
		hostmem.Product(workers(tiles), Kernels.BackwardBytes(cfg.HeadDim, cfg.ValueDim())))
	if want.Q {
		total = hostmem.Sum(total, hostmem.Product(rows, uint64(Kernels.Stride(cfg.HeadDim)), 4))
	}
	if tiles < tilesPerCPU*uint64(runtime.GOMAXPROCS(0)) && !want.Bias {
		total = hostmem.Sum(total, maxParts)
	}
	for i, wanted := range want.Tables {
		if wanted { // of the call, and of each worker for the heads of a group
			_, entries := tensors.TableGradient(cfg, i).Sizes(tensors.TableDims(cfg, &a.Args, i))
			total = hostmem.Sum(total, hostmem.Product(tensors.TableElements(cfg, &a.Args, i), 8), hostmem.Product(workers(tiles), uint64(a.Group()), uint64(entries), 8))
		}
	}
	if a.SparseTokens != nil {
		total = hostmem.Sum(total, hostmem.Product(uint64(tensors.SparseTotal(&a.Args)), 16))
	}
	return total
}
