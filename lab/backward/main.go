// Command backward times and checks experiments with kernels of the backward pass.
package main

import (
	"bufio"
	"context"
	"embed"
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"vkattn/attention/half"
	"vkattn/vk"
)

//go:embed spv/*.spv
var spirv embed.FS

var (
	fCell   = flag.String("cell", "", "child: dtype,d,causal")
	fSkip   = flag.String("skip", "", "child: kernels to leave out, separated by commas")
	fOnly   = flag.String("only", "", "kernels to run (substrings, separated by commas)")
	fCells  = flag.String("cells", "f16,64,0;f16,128,0;f16,64,1;f16,128,1;bf16,64,0;bf16,128,0", "cells to run")
	fLens   = flag.String("lengths", "4096,1024,16384", "lengths to time; empty: none")
	fTokens = flag.Int("tokens", 16384, "batch x length")
	fHeads  = flag.Int("heads", 16, "heads")
	fRounds = flag.Int("rounds", 7, "rounds")
	fLimit  = flag.Duration("limit", 60*time.Second, "time limit of a child")
	fCheck  = flag.Bool("check", true, "check on small shapes")
	fBudget = flag.Duration("budget", 145*time.Second, "time limit of the run")
	fSmall  = flag.Bool("lavapipe", false, "fragments of 8, subgroups of 8")
	fFull   = flag.Bool("bf16all", false, "all variants for bf16 too")
)

func main() {
	log.SetFlags(0)
	flag.Parse()
	if *fCell != "" {
		child()
		return
	}
	start := time.Now()
	var left time.Duration
	out := os.Getenv("OUT")
	if out == "" {
		out = "."
	}
	results, err := os.Create(filepath.Join(out, "backward.jsonl"))
	check(err)
	defer results.Close()
	for _, cell := range strings.Split(*fCells, ";") {
		skip := []string{}
		for try := 0; try < 4; try++ {
			left = *fBudget - time.Since(start)
			if left < 8*time.Second {
				break
			}
			last, err := parent(cell, skip, results, min(left, *fLimit))
			if err == nil {
				break
			}
			fmt.Printf("cell %s: child ended in %q: %v\n", cell, last, err)
			if last == "" || slices.Contains(skip, last) {
				break
			}
			skip = append(skip, last)
		}
		fmt.Printf("# %s done at %.0f s\n", cell, time.Since(start).Seconds())
	}
}

// parent runs a child and returns the kernel that it was busy with when it failed.
func parent(cell string, skip []string, results *os.File, limit time.Duration) (last string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	args := []string{"-cell", cell, "-skip", strings.Join(skip, ",")}
	flag.Visit(func(f *flag.Flag) {
		if f.Name != "cells" && f.Name != "cell" && f.Name != "skip" {
			args = append(args, "-"+f.Name+"="+f.Value.String())
		}
	})
	name, err := os.Executable()
	if err != nil {
		return "", err
	}
	if e := os.Getenv("VKATTN_EXEC"); e != "" { // os.Executable is the dynamic loader
		f := strings.Fields(e)
		args = append(append(f[1:], os.Args[0]), args...)
		name = f[0]
	}
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stderr = os.Stdout
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return "", err
	}
	if err := cmd.Start(); err != nil {
		return "", err
	}
	lines := bufio.NewScanner(pipe)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		switch {
		case strings.HasPrefix(line, "@begin "):
			last = strings.TrimPrefix(line, "@begin ")
		case strings.HasPrefix(line, "{"):
			fmt.Fprintln(results, line)
		default:
			fmt.Println(line)
		}
	}
	return last, cmd.Wait()
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// kernel is a variant of one of the four shaders.
type kernel struct {
	kind                   string // delta, dkdv, dq, dq_add
	sg, m, tile            int
	a, b                   int // chunks in shared memory
	buffers, step, storeDS int
	ahead, ablate, order   int
	staged, fence, rolled  int
	only                   int // head dim, 0 any
	extra                  bool
	pipe                   *vk.Pipeline
	group                  map[int]*vk.Pipeline // of the library's kernels, by heads per KV head
	stats                  string
	compile                time.Duration
	times                  map[int][]time.Duration // by length
}

func (k *kernel) name() string {
	if k.kind == "delta" {
		return "delta"
	}
	s := fmt.Sprintf("%s/%dx%dx%d", k.kind, k.sg, k.m, k.tile)
	add := func(v, def int, tag string) {
		if v != def {
			s += fmt.Sprintf("_%s%d", tag, v)
		}
	}
	add(k.step, 16, "s")
	add(k.a, 0, "a")
	add(k.b, 0, "b")
	add(k.buffers, 1, "db")
	add(k.ahead, 0, "ah")
	add(k.staged, 0, "st")
	add(k.fence, 0, "f")
	add(k.rolled, 0, "r")
	add(k.order, 0, "o")
	add(k.ablate, 0, "ablate")
	add(k.storeDS, 0, "ds")
	return s
}

// products is the number of matrix products.
func (k *kernel) products() int {
	return map[string]int{"dkdv": 4, "dq": 3, "dq_add": 1, "pkv": 4, "pq": 3, "pkvk": 4, "pqk": 3}[k.kind]
}

func (k *kernel) rows() int { return k.sg * k.m * frag }

var frag, sgSize = 16, 32

func (k *kernel) shared(d int) int {
	st := d/8 | 1
	aS, bS := 0, 0
	if k.a > 0 {
		aS = k.rows() * (k.a*frag/8 | 1)
	}
	if k.b > 0 {
		bS = k.rows() * (k.b*frag/8 | 1)
	}
	scratch := k.sg * frag * (2*frag/8 | 1)
	switch k.kind {
	case "dkdv":
		return 16 * max(scratch, k.buffers*(2*k.tile*st+k.tile/2)+aS+bS)
	case "dq":
		return 16 * max(scratch, k.buffers*2*k.tile*st+k.rows()/2+aS+bS)
	case "pkv", "pq", "pkvk", "pqk":
		tile := 2*k.tile*st + k.tile/2 + aS
		if k.kind[1] == 'q' {
			tile = max(2*k.tile*st, k.rows()/2)
		}
		if k.kind[len(k.kind)-1] == 'k' {
			return 16 * (tile + k.sg*frag*(frag/4|1))
		}
		return 16 * max(tile, k.sg*frag*(frag/4|1))
	case "dq_add":
		return 16 * max(scratch, k.tile*st+k.sg*k.m*k.step*frag*(frag/8|1))
	}
	return 0
}

type cell struct {
	dtype  string
	d      int
	causal int
}

func (k *kernel) open(dev *vk.Device, c cell) error {
	module := k.kind
	if k.rolled != 0 {
		module += "_rolled"
	}
	code, err := spirv.ReadFile(fmt.Sprintf("spv/%s_%s.spv", module, c.dtype))
	if err != nil {
		return err
	}
	local := k.sg * sgSize
	barrier := 1
	if *fSmall {
		code = rolled(code)
		barrier = 0
	}
	if k.kind[0] == 'p' {
		return k.openProduct(dev, c, code, local, barrier)
	}
	var consts []vk.SpecConstant
	for _, c := range [][2]int{{0, local}, {1, sgSize}, {2, frag}, {3, frag}, {4, frag}, {5, k.m}, {6, k.tile}, {8, c.d}, {9, c.d},
		{11, c.causal}, {21, barrier}, {70, k.a}, {71, k.b}, {72, k.buffers}, {73, k.storeDS}, {74, k.ablate}, {75, k.step}, {76, k.ahead}, {77, k.order}, {78, k.staged}, {79, k.fence}} {
		consts = append(consts, vk.SpecConstant{ID: uint32(c[0]), Value: uint32(c[1])})
	}
	start := time.Now()
	k.pipe, err = dev.Pipeline(&vk.PipelineDesc{Name: k.name(), Code: code, Constants: consts, SubgroupSize: uint32(sgSize), FullSubgroups: true,
		PushBytes: 40, StorageBuffers: map[string]uint32{"delta": 3, "dkdv": 9, "dq": 7, "dq_add": 4}[k.kind],
		LocalSize: [3]uint32{uint32(local), 1, 1}, SharedBytes: uint64(k.shared(c.d)), NoRobustness: true})
	if err != nil {
		return err
	}
	k.compile = time.Since(start)
	k.readStats()
	return nil
}

func (k *kernel) openProduct(dev *vk.Device, c cell, code []byte, local, barrier int) error {
	start := time.Now()
	k.group = map[int]*vk.Pipeline{}
	for _, group := range []int{1, 2} {
		var consts []vk.SpecConstant
		for _, c := range [][2]int{{0, local}, {1, sgSize}, {2, frag}, {3, frag}, {4, frag}, {5, k.m}, {6, k.tile}, {80, k.tile}, {8, c.d}, {9, c.d}, {10, c.d},
			{11, c.causal}, {13, 8}, {14, 8}, {15, 8}, {72, 8}, {73, 8}, {74, 8}, {21, barrier}, {22, frag}, {23, k.step}, {24, k.a}, {31, group}} {
			consts = append(consts, vk.SpecConstant{ID: uint32(c[0]), Value: uint32(c[1])})
		}
		pipe, err := dev.Pipeline(&vk.PipelineDesc{Name: k.name(), Code: code, Constants: consts, SubgroupSize: uint32(sgSize), FullSubgroups: true,
			StorageBuffers: 16, LocalSize: [3]uint32{uint32(local), 1, 1}, SharedBytes: uint64(k.shared(c.d)), NoRobustness: true})
		if err != nil {
			return err
		}
		k.group[group] = pipe
	}
	k.pipe = k.group[1]
	k.compile = time.Since(start)
	k.readStats()
	return nil
}

// runProduct records a kernel with the interface of the library.
func (l *lab) runProduct(k *kernel, b *buffers, s shape) {
	d := l.cell.d
	var push []byte
	pairs := func(n int) { push = append(push, make([]byte, 8*n)...) }
	put := func(list ...int) {
		for _, x := range list {
			push = binary.LittleEndian.AppendUint32(push, uint32(int32(x)))
		}
	}
	float := func(x float64) { push = binary.LittleEndian.AppendUint32(push, math.Float32bits(float32(x))) }
	pairs(7 + 4 + 3)
	q, kv := []int{s.Hq * s.Sq * d, s.Sq * d, d}, []int{s.Hkv * s.Sk * d, s.Sk * d, d}
	isQ := k.kind[1] == 'q'
	put(q...)
	put(kv...)
	put(kv...)
	put(q...)
	if isQ {
		put(q...)
	} else {
		put(kv...)
	}
	put(kv...)
	put(0, 0, 0, 0, 0, 0)
	put(s.B, s.Sq, s.Sk, s.Hq, s.Hq/s.Hkv, s.Sq, s.Sk)
	float(scale(d))
	put(s.offset, -1, -1) // not 0: Sk - Sq
	float(0)
	dx := b.dk
	if isQ {
		dx = b.dq
	}
	var list []vk.BufferRange
	for _, x := range []*vk.Buffer{b.q, b.k, b.v, b.do, b.stats, b.lse, b.lse, b.lse, b.lse, dx, b.lse, b.dv, b.lse, b.lse, b.lse} {
		list = append(list, vk.BufferRange{Buffer: x, Size: x.Size()})
	}
	params, err := l.stream.Params(push)
	check(err)
	list = append(list, params)
	group := s.Hq / s.Hkv
	groups := [3]uint32{uint32((s.Sk + k.rows() - 1) / k.rows()), uint32(s.Hkv), uint32(s.B)}
	if isQ {
		groups[0] = uint32((s.Sq*group + k.rows() - 1) / k.rows())
	}
	check(l.stream.Dispatch(k.group[group], list, nil, groups))
}

func (k *kernel) readStats() {
	if list, err := k.pipe.Statistics(); err == nil {
		for _, s := range list {
			n := strings.ToLower(s.Name)
			if strings.Contains(n, "register") || strings.Contains(n, "local") || strings.Contains(n, "spill") || strings.Contains(n, "shared") || strings.Contains(n, "stack") || strings.Contains(n, "size") {
				k.stats += fmt.Sprintf(" %s=%.0f", strings.ReplaceAll(s.Name, " ", "_"), s.Value)
			}
		}
	}
}

// variants lists the kernels of a cell.
func variants(c cell) (list []*kernel) {
	all := []kernel{{kind: "delta", sg: 8, m: 1}}
	if *fSmall {
		n := frag * 2
		all = append(all, kernel{kind: "dkdv", sg: 2, m: 2, tile: n, rolled: 1, fence: 2}, kernel{kind: "dkdv", sg: 2, m: 1, tile: n, storeDS: 1, rolled: 1},
			kernel{kind: "dkdv", sg: 2, m: 1, tile: n, buffers: 2, staged: 1, fence: 1}, kernel{kind: "dkdv", sg: 2, m: 1, tile: n, a: 1, fence: 3},
			kernel{kind: "dkdv", sg: 2, m: 2, tile: n, buffers: 2, staged: 1}, kernel{kind: "dkdv", sg: 4, m: 1, tile: n, buffers: 2, staged: 1, storeDS: 1},
			kernel{kind: "dq", sg: 2, m: 1, tile: n},
			kernel{kind: "pkv", sg: 2, m: 1, tile: n}, kernel{kind: "pkv", sg: 2, m: 2, tile: 2 * n}, kernel{kind: "pq", sg: 2, m: 1, tile: n}, kernel{kind: "pq", sg: 4, m: 2, tile: 2 * n},
			kernel{kind: "pkvk", sg: 2, m: 1, tile: n}, kernel{kind: "pqk", sg: 2, m: 1, tile: n},
			kernel{kind: "dq_add", sg: 2, m: 1, tile: n, step: 1}, kernel{kind: "dq_add", sg: 2, m: 2, tile: 2 * n, step: 2}, kernel{kind: "dq_add", sg: 2, m: 2, tile: n, step: 2})
	} else {
		all = append(all, table(c)...)
	}
	for _, k := range all {
		if k.step == 0 {
			k.step = frag
		}
		if k.buffers == 0 {
			k.buffers = 1
		}
		k.times = map[int][]time.Duration{}
		if k.shared(c.d) > 48<<10 {
			fmt.Printf("%s needs %d bytes of shared memory\n", k.name(), k.shared(c.d))
			continue
		}
		list = append(list, &k)
	}
	return list
}

func table(c cell) (list []kernel) {
	add := func(k kernel, with ...func(*kernel)) {
		for _, w := range with {
			w(&k)
		}
		list = append(list, k)
	}
	fence := func(n int) func(*kernel) { return func(k *kernel) { k.fence = n } }
	rolled := func(k *kernel) { k.rolled = 1 }
	staged := func(k *kernel) { k.buffers, k.staged = 2, 1 }
	ds := func(k *kernel) { k.storeDS = 1 }
	ablate := func(n int) func(*kernel) { return func(k *kernel) { k.ablate = n } }
	dkdv := func(sg, m, tile, a, b int) kernel { return kernel{kind: "dkdv", sg: sg, m: m, tile: tile, a: a, b: b} }
	var shapes []kernel
	if c.d <= 64 {
		shapes = []kernel{dkdv(8, 2, 64, 2, 0), dkdv(8, 2, 64, 0, 0), dkdv(4, 2, 64, 0, 0), dkdv(8, 1, 64, 0, 0)}
	} else {
		shapes = []kernel{dkdv(8, 1, 64, 0, 0), dkdv(8, 1, 48, 0, 0), dkdv(8, 1, 32, 0, 0)}
	}
	for _, k := range shapes {
		add(k)
		add(k, fence(1))
		add(k, fence(2))
		add(k, fence(3))
		add(k, rolled)
		add(k, rolled, fence(2))
		add(k, fence(2), ds)
		add(k, rolled, ds)
	}
	for _, n := range []int{32, 64} {
		for _, k := range []kernel{dkdv(8, 2, n, 0, 0), dkdv(4, 2, n, 0, 0), dkdv(8, 1, n, 0, 0)} {
			if (c.d > 64 && k.m == 2) || (k.sg == 4 && n == 64) || (c.d > 64 && n > 32) {
				continue
			}
			add(k, staged)
			add(k, staged, fence(1))
			add(k, staged, fence(2))
			add(k, staged, fence(2), ds)
		}
	}
	if c.d <= 64 {
		add(shapes[0], fence(2), ablate(2))
		add(shapes[0], fence(2), ablate(3))
		add(shapes[2], fence(2), ablate(3))
		for _, k := range []kernel{{kind: "dq", sg: 8, m: 2, tile: 64}, {kind: "dq", sg: 8, m: 2, tile: 96}, {kind: "dq", sg: 8, m: 2, tile: 128}, {kind: "dq", sg: 8, m: 2, tile: 64, step: 32}} {
			add(k)
		}
	} else {
		add(shapes[0], fence(2), ablate(2))
		add(shapes[0], fence(2), ablate(3))
		add(shapes[2], fence(2), ablate(3))
		for _, k := range []kernel{{kind: "dq", sg: 8, m: 1, tile: 64, step: 32}, {kind: "dq", sg: 8, m: 1, tile: 80}, {kind: "dq", sg: 8, m: 1, tile: 64, step: 64}, {kind: "dq", sg: 8, m: 1, tile: 64, step: 32, ablate: 2}, {kind: "dq", sg: 8, m: 1, tile: 64, step: 32, ablate: 3}} {
			add(k)
		}
	}
	for _, k := range []kernel{{sg: 8, m: 2, tile: 32, step: 2}, {sg: 8, m: 2, tile: 64, step: 2}, {sg: 8, m: 2, tile: 64, step: 1}, {sg: 4, m: 2, tile: 64, step: 1}, {sg: 4, m: 2, tile: 32, step: 1}, {sg: 8, m: 1, tile: 64, step: 2}, {sg: 8, m: 1, tile: 128, step: 2}} {
		k.kind = "dq_add"
		add(k)
	}
	if c.dtype == "bf16" && !*fFull {
		list = slices.DeleteFunc(list, func(k kernel) bool { return k.rolled != 0 || k.fence == 3 || k.ablate != 0 })
	}
	return list
}

func child() {
	f := strings.Split(*fCell, ",")
	c := cell{dtype: f[0]}
	fmt.Sscan(f[1], &c.d)
	fmt.Sscan(f[2], &c.causal)
	if *fSmall {
		frag, sgSize = 8, 8
	}
	dev, err := vk.Open(vk.Options{Stats: true, PipelineCache: "off"})
	check(err)
	defer dev.Close()
	fmt.Printf("# %s d%d causal %d on %s\n", c.dtype, c.d, c.causal, dev.Info().Name)
	list := variants(c)
	skip := strings.Split(*fSkip, ",")
	list = slices.DeleteFunc(list, func(k *kernel) bool {
		if slices.Contains(skip, k.name()) {
			return true
		}
		if *fOnly == "" || k.kind == "delta" {
			return false
		}
		for _, s := range strings.Split(*fOnly, ",") {
			if strings.Contains(k.name(), s) {
				return false
			}
		}
		return true
	})
	// Pipelines compile in parallel.
	start := time.Now()
	var wait sync.WaitGroup
	slots := make(chan bool, max(1, runtime.NumCPU()-1))
	errs := make([]error, len(list))
	for i, k := range list {
		wait.Add(1)
		go func() {
			defer wait.Done()
			slots <- true
			errs[i] = k.open(dev, c)
			<-slots
		}()
	}
	wait.Wait()
	var ok []*kernel
	for i, k := range list {
		if errs[i] != nil {
			fmt.Printf("%-28s %v\n", k.name(), errs[i])
			continue
		}
		ok = append(ok, k)
	}
	fmt.Printf("# %d pipelines in %.1f s\n", len(ok), time.Since(start).Seconds())
	l := &lab{dev: dev, cell: c, list: ok, bad: map[string]string{}, err: map[string]float64{}}
	l.stream, err = dev.NewStream("lab")
	check(err)
	if *fCheck {
		l.checkSmall()
	}
	l.timeAll()
	for _, k := range ok {
		if k.kind == "delta" {
			continue
		}
		line := fmt.Sprintf("%-26s err %.1e %-6s", k.name(), l.err[k.name()], l.bad[k.name()])
		record := map[string]any{"kernel": k.name(), "dtype": c.dtype, "d": c.d, "causal": c.causal, "stats": k.stats, "err": l.err[k.name()], "shared": k.shared(c.d)}
		for _, n := range lengths() {
			if t := median(k.times[n]); t > 0 {
				speed := l.flops(n) / 2 * float64(k.products()) / t.Seconds() / 1e12
				line += fmt.Sprintf(" | %d: %8.3f ms %4.0f", n, t.Seconds()*1e3, speed)
				record[fmt.Sprintf("us%d", n)] = t.Seconds() * 1e6
				record[fmt.Sprintf("raw%d", n)] = speed
			}
		}
		fmt.Printf("%s |%s shared=%d compile=%.1f\n", line, k.stats, k.shared(c.d), k.compile.Seconds())
		emit(record)
	}
	check(l.stream.Close())
}

func emit(r map[string]any) {
	text, _ := json.Marshal(r)
	fmt.Println(string(text))
}

func lengths() (list []int) {
	for _, s := range strings.Split(*fLens, ",") {
		n := 0
		if fmt.Sscan(s, &n); n > 0 {
			list = append(list, n)
		}
	}
	return list
}

func median(t []time.Duration) time.Duration {
	if len(t) == 0 {
		return 0
	}
	t = slices.Clone(t)
	slices.Sort(t)
	return t[len(t)/2]
}

// shape is a problem. offset is the causal offset.
type shape struct{ B, Hq, Hkv, Sq, Sk, offset int }

type lab struct {
	dev    *vk.Device
	stream *vk.Stream
	cell   cell
	list   []*kernel
	bad    map[string]string
	err    map[string]float64
}

// flops of one forward pass.
func (l *lab) flops(n int) float64 {
	f := 4 * float64(*fTokens) / float64(n) * float64(*fHeads) * float64(n) * float64(n) * float64(l.cell.d)
	if l.cell.causal != 0 {
		f /= 2
	}
	return f
}

// buffers of a problem.
type buffers struct {
	q, k, v, o, do, lse, delta, dq, dk, dv, ds, sum, stats *vk.Buffer
}

func (l *lab) alloc(s shape, dsBytes uint64) *buffers {
	e := func(n int) *vk.Buffer {
		b, err := l.dev.NewBuffer(uint64(n), vk.BufferOptions{})
		check(err)
		return b
	}
	d := l.cell.d
	const pad = 1024
	q, k := (s.B*s.Hq*s.Sq+pad)*d*2, (s.B*s.Hkv*s.Sk+pad)*d*2
	b := &buffers{q: e(q), k: e(k), v: e(k), o: e(q), do: e(q), lse: e((s.B*s.Hq*s.Sq + pad) * 4), delta: e((s.B*s.Hq*s.Sq + pad) * 4), dq: e(q), dk: e(k), dv: e(k)}
	b.sum = e(s.B * s.Hq * (s.Sq + pad) * d * 4)
	b.ds = e(int(dsBytes))
	b.stats = e((s.B*s.Hq*s.Sq + pad) * 8)
	return b
}

func (b *buffers) close() {
	for _, x := range []*vk.Buffer{b.q, b.k, b.v, b.o, b.do, b.lse, b.delta, b.dq, b.dk, b.dv, b.ds, b.sum, b.stats} {
		x.Close()
	}
}

func rnd(n, to int) int { return (n + to - 1) / to * to }

// chunkUnit divides chunks of keys; every workgroup's keys divide it.
func chunkUnit() int {
	if *fSmall {
		return 32
	}
	return 512
}

// dsBytes is the scratch of dS for a chunk of keys.
func dsBytes(s shape, keys, tile int) uint64 {
	return uint64(s.B*s.Hq) * uint64(rnd(keys, chunkUnit())) * uint64(rnd(s.Sq, tile)) * 2
}

// run records a kernel. firstKey and keys are the chunk, tile the dkdv kernel's that wrote dS.
func (l *lab) run(k *kernel, b *buffers, s shape, firstKey, keys, tile int, flags uint32) {
	if k.kind[0] == 'p' {
		l.runProduct(k, b, s)
		return
	}
	d := l.cell.d
	push := make([]byte, 40)
	put := func(i int, x uint32) { binary.LittleEndian.PutUint32(push[4*i:], x) }
	for i, x := range []int{s.Sq, s.Sk, s.Hq, s.Hkv, s.offset} {
		put(i, uint32(int32(x)))
	}
	put(5, math.Float32bits(float32(scale(d))))
	put(6, uint32(firstKey))
	put(7, uint32(rnd(keys, chunkUnit())/frag))
	put(8, uint32(rnd(s.Sq, tile)/frag))
	put(9, flags)
	r := func(list ...*vk.Buffer) (out []vk.BufferRange) {
		for _, x := range list {
			out = append(out, vk.BufferRange{Buffer: x, Size: x.Size()})
		}
		return out
	}
	left := min(keys, s.Sk-firstKey)
	groups := [3]uint32{1, 1, 1}
	var list []vk.BufferRange
	put2 := func(x, y int) {
		groups = [3]uint32{uint32(x), uint32(y), 1}
		if k.order == 1 {
			groups[0], groups[1] = groups[1], groups[0]
		}
	}
	switch k.kind {
	case "delta":
		put(0, uint32(s.B*s.Hq*s.Sq))
		lanes := 1
		if v := d / 8; v&(v-1) == 0 && v <= sgSize {
			lanes = v
		}
		groups[0] = uint32((s.B*s.Hq*s.Sq*lanes + k.sg*sgSize - 1) / (k.sg * sgSize))
		list = r(b.o, b.do, b.delta)
	case "dkdv":
		put2((left+k.rows()-1)/k.rows(), s.B*s.Hkv)
		list = r(b.q, b.k, b.v, b.do, b.lse, b.delta, b.dk, b.dv, b.ds)
	case "dq":
		put2((s.Sq+k.rows()-1)/k.rows(), s.B*s.Hq)
		list = r(b.q, b.k, b.v, b.do, b.lse, b.delta, b.dq)
	case "dq_add":
		put2((s.Sq+k.rows()-1)/k.rows(), s.B*s.Hq)
		list = r(b.k, b.ds, b.sum, b.dq)
	}
	check(l.stream.Dispatch(k.pipe, list, push, groups))
}

// pairs uploads (LSE, delta) of every row, from the delta kernel.
func (l *lab) pairs(b *buffers, h *data) {
	n := len(h.lse)
	raw := make([]byte, 4*n)
	check(l.stream.Download(context.Background(), raw, b.delta, 0))
	two := make([]byte, 8*n)
	for i, x := range h.lse {
		if math.IsInf(float64(x), -1) {
			x = -x
		}
		binary.LittleEndian.PutUint32(two[8*i:], math.Float32bits(x))
		copy(two[8*i+4:8*i+8], raw[4*i:])
	}
	check(l.stream.Upload(b.stats, 0, two))
}

func scale(d int) float64 { return 1 / math.Sqrt(float64(d)) }

// data is a problem's tensors on the host, rounded to storage.
type data struct {
	q, k, v, o, do, lse []float32
}

func (l *lab) encode(x []float32) []byte {
	out := make([]byte, 2*len(x))
	if l.cell.dtype == "bf16" {
		half.EncodeBF16(out, x)
		half.DecodeBF16(x, out)
	} else {
		half.EncodeF16(out, x)
		half.DecodeF16(x, out)
	}
	return out
}

func (l *lab) decode(raw []byte) []float32 {
	out := make([]float32, len(raw)/2)
	if l.cell.dtype == "bf16" {
		half.DecodeBF16(out, raw)
	} else {
		half.DecodeF16(out, raw)
	}
	return out
}

func f32bytes(x []float32) []byte {
	out := make([]byte, 4*len(x))
	for i, v := range x {
		binary.LittleEndian.PutUint32(out[4*i:], math.Float32bits(v))
	}
	return out
}

var normals = func() []float32 {
	r := rand.New(rand.NewPCG(1, 2))
	t := make([]float32, 1<<16)
	for i := range t {
		t[i] = float32(r.NormFloat64())
	}
	return t
}()

func fill(n int, seed uint64, scale float32) []float32 {
	x := make([]float32, n)
	s := seed*0x9e3779b97f4a7c15 + 1
	for i := range x {
		s ^= s << 13
		s ^= s >> 7
		s ^= s << 17
		x[i] = normals[s>>48] * scale
	}
	return x
}

// block is the period of the data of timed problems, in elements.
const block = 1<<20 + 1<<10*7

// periodic is a tensor of n elements with the period block, and its bytes.
func (l *lab) periodic(n int, seed uint64, scale float32) ([]float32, []byte) {
	one := fill(block, seed, scale)
	raw := l.encode(one)
	x, bytes := make([]float32, n), make([]byte, 2*n)
	for at := 0; at < n; at += block {
		copy(x[at:], one)
		copy(bytes[2*at:], raw)
	}
	return x, bytes
}

func (l *lab) upload(b *buffers, s shape, h *data) {
	up := func(buf *vk.Buffer, raw []byte) { check(l.stream.Upload(buf, 0, raw)) }
	up(b.q, l.encode(h.q))
	up(b.k, l.encode(h.k))
	up(b.v, l.encode(h.v))
	up(b.do, l.encode(h.do))
	up(b.o, l.encode(h.o))
	up(b.lse, f32bytes(h.lse))
}

func (l *lab) download(b *vk.Buffer, n int) []float32 {
	raw := make([]byte, 2*n)
	check(l.stream.Download(context.Background(), raw, b, 0))
	return l.decode(raw)
}

func (l *lab) wait() { check(l.stream.Wait(context.Background())) }

func visible(c cell, s shape, row int) int {
	if c.causal == 0 {
		return s.Sk
	}
	return min(max(row+s.offset+1, 0), s.Sk)
}

// forward computes O and LSE in float64.
func (l *lab) forward(s shape, h *data) {
	d := l.cell.d
	h.o, h.lse = make([]float32, s.B*s.Hq*s.Sq*d), make([]float32, s.B*s.Hq*s.Sq)
	p := make([]float64, s.Sk)
	for bh := range s.B * s.Hq {
		kv := bh/s.Hq*s.Hkv + bh%s.Hq/(s.Hq/s.Hkv)
		for r := range s.Sq {
			q := h.q[(bh*s.Sq+r)*d:][:d]
			n := visible(l.cell, s, r)
			m, sum := math.Inf(-1), 0.0
			for j := range n {
				p[j] = dot(q, h.k[(kv*s.Sk+j)*d:][:d]) * scale(d)
				m = max(m, p[j])
			}
			o := make([]float64, d)
			for j := range n {
				w := math.Exp(p[j] - m)
				sum += w
				for i, x := range h.v[(kv*s.Sk+j)*d:][:d] {
					o[i] += w * float64(x)
				}
			}
			h.lse[bh*s.Sq+r] = float32(m + math.Log(sum))
			if n == 0 {
				h.lse[bh*s.Sq+r] = float32(math.Inf(-1))
				continue
			}
			for i := range o {
				h.o[(bh*s.Sq+r)*d+i] = float32(o[i] / sum)
			}
		}
	}
}

func dot(a, b []float32) (s float64) {
	for i, x := range a {
		s += float64(x) * float64(b[i])
	}
	return s
}

// gradients of chosen rows and keys, float64. delta is nil: computed from O.
func (l *lab) reference(s shape, h *data, rows, keys []int) (dq, dk, dv map[int][]float64) {
	d := l.cell.d
	dq, dk, dv = map[int][]float64{}, map[int][]float64{}, map[int][]float64{}
	cellOf := func(bh, kv, r, j int) (p, ds float64) {
		if j >= visible(l.cell, s, r) {
			return 0, 0
		}
		row := bh*s.Sq + r
		p = math.Exp(dot(h.q[row*d:][:d], h.k[(kv*s.Sk+j)*d:][:d])*scale(d) - float64(h.lse[row]))
		dp := dot(h.do[row*d:][:d], h.v[(kv*s.Sk+j)*d:][:d])
		return p, p * (dp - dot(h.do[row*d:][:d], h.o[row*d:][:d]))
	}
	for _, row := range rows {
		bh, r := row/s.Sq, row%s.Sq
		kv := bh/s.Hq*s.Hkv + bh%s.Hq/(s.Hq/s.Hkv)
		g := make([]float64, d)
		for j := range visible(l.cell, s, r) {
			_, ds := cellOf(bh, kv, r, j)
			for i, x := range h.k[(kv*s.Sk+j)*d:][:d] {
				g[i] += ds * scale(d) * float64(x)
			}
		}
		dq[row] = g
	}
	for _, key := range keys {
		kv, j := key/s.Sk, key%s.Sk
		gk, gv := make([]float64, d), make([]float64, d)
		group := s.Hq / s.Hkv
		for h0 := range group {
			bh := kv/s.Hkv*s.Hq + kv%s.Hkv*group + h0
			for r := range s.Sq {
				p, ds := cellOf(bh, kv, r, j)
				if p == 0 {
					continue
				}
				for i := range d {
					gk[i] += ds * scale(d) * float64(h.q[(bh*s.Sq+r)*d+i])
					gv[i] += p * float64(h.do[(bh*s.Sq+r)*d+i])
				}
			}
		}
		dk[key], dv[key] = gk, gv
	}
	return dq, dk, dv
}

// errorOf is the largest difference over the largest magnitude of the reference.
func errorOf(got []float32, want map[int][]float64, d int) float64 {
	top, worst := 0.0, 0.0
	for row, w := range want {
		for i, x := range w {
			top = max(top, math.Abs(x))
			e := math.Abs(x - float64(got[row*d+i]))
			if e != e {
				return math.Inf(1)
			}
			worst = max(worst, e)
		}
	}
	if top == 0 {
		return worst
	}
	return worst / top
}

// errorAt is errorOf of the rows that want has, downloaded one by one.
func (l *lab) errorAt(b *vk.Buffer, want map[int][]float64) float64 {
	d := l.cell.d
	got, dense, n := []float32{}, map[int][]float64{}, 0
	for row, w := range want {
		raw := make([]byte, 2*d)
		check(l.stream.Download(context.Background(), raw, b, uint64(2*d*row)))
		got = append(got, l.decode(raw)...)
		dense[n] = w
		n++
	}
	return errorOf(got, dense, d)
}

func (l *lab) find(kind string, storeDS int) *kernel {
	for _, k := range l.list {
		if k.kind == kind && k.storeDS == storeDS && k.ablate == 0 && l.bad[k.name()] == "" {
			return k
		}
	}
	return nil
}

func (l *lab) note(k *kernel, what string, e, limit float64) {
	l.err[k.name()] = max(l.err[k.name()], e)
	if e > limit || e != e {
		if l.bad[k.name()] == "" {
			fmt.Printf("%-26s WRONG in %s: %.3g\n", k.name(), what, e)
		}
		l.bad[k.name()] = "WRONG"
	}
}

// checkSmall compares every kernel with the reference.
func (l *lab) checkSmall() {
	shapes := []shape{{1, 2, 2, 192, 192, 0}, {1, 4, 2, 150, 333, 183}, {2, 2, 1, 300, 70, 0}, {1, 2, 1, 133, 90, -43}, {1, 1, 1, 512, 520, 8}}
	if *fSmall {
		shapes = []shape{{1, 2, 2, 64, 64, 0}, {1, 4, 2, 37, 51, 14}, {2, 2, 1, 45, 22, 0}, {1, 2, 1, 41, 25, -16}}
	}
	limit := 3e-3
	if l.cell.dtype == "bf16" {
		limit = 2e-2
	}
	for _, s := range shapes {
		d := l.cell.d
		what := fmt.Sprintf("%v", s)
		h := &data{q: fill(s.B*s.Hq*s.Sq*d, 1, 1), k: fill(s.B*s.Hkv*s.Sk*d, 2, 1), v: fill(s.B*s.Hkv*s.Sk*d, 3, 1), do: fill(s.B*s.Hq*s.Sq*d, 4, 1)}
		l.encode(h.q)
		l.encode(h.k)
		l.encode(h.v)
		l.encode(h.do)
		l.forward(s, h)
		b := l.alloc(s, dsBytes(s, s.Sk, 192)+1<<20)
		l.upload(b, s, h)
		rows, keys := make([]int, s.B*s.Hq*s.Sq), make([]int, s.B*s.Hkv*s.Sk)
		for i := range rows {
			rows[i] = i
		}
		for i := range keys {
			keys[i] = i
		}
		dq, dk, dv := l.reference(s, h, rows, keys)
		delta := l.find("delta", 0)
		l.run(delta, b, s, 0, s.Sk, 64, 0)
		check(l.stream.Barrier())
		check(l.stream.Fill(vk.BufferRange{Buffer: b.ds, Size: b.ds.Size()}, 0x7fff7fff))
		l.wait()
		l.pairs(b, h)
		first := true
		for _, k := range l.list {
			if k.kind == "delta" || k.ablate != 0 {
				continue
			}
			fmt.Printf("@begin %s\n", k.name())
			switch k.kind {
			case "dkdv", "pkv", "pkvk":
				check(l.stream.Fill(vk.BufferRange{Buffer: b.dk, Size: b.dk.Size()}, 0x7fff7fff))
				check(l.stream.Fill(vk.BufferRange{Buffer: b.dv, Size: b.dv.Size()}, 0x7fff7fff))
				check(l.stream.Barrier())
				l.run(k, b, s, 0, s.Sk, k.tile, 0)
				check(l.stream.Barrier())
				l.note(k, what+" dk", errorOf(l.download(b.dk, len(h.k)), dk, d), limit)
				l.note(k, what+" dv", errorOf(l.download(b.dv, len(h.v)), dv, d), limit)
			case "dq", "dq_add", "pq", "pqk":
				check(l.stream.Fill(vk.BufferRange{Buffer: b.dq, Size: b.dq.Size()}, 0x7fff7fff))
				check(l.stream.Barrier())
				if k.kind != "dq_add" {
					l.run(k, b, s, 0, s.Sk, 64, 0)
				} else {
					w := l.find("dkdv", 1)
					if w == nil {
						continue
					}
					chunk := chunkUnit()
					for at := 0; at < s.Sk; at += chunk {
						l.run(w, b, s, at, min(chunk, s.Sk-at), w.tile, 0)
						check(l.stream.Barrier())
						flags := uint32(0)
						if at > 0 {
							flags |= 1
						}
						if at+chunk >= s.Sk {
							flags |= 2
						}
						l.run(k, b, s, at, min(chunk, s.Sk-at), w.tile, flags)
						check(l.stream.Barrier())
					}
				}
				check(l.stream.Barrier())
				l.note(k, what+" dq", errorOf(l.download(b.dq, len(h.q)), dq, d), limit)
			}
			first = false
		}
		_ = first
		b.close()
	}
	fmt.Println("@begin ")
}

// fastest is delta and the two fastest kernels of each kind at length n.
func (l *lab) fastest(live []*kernel, n int) (list []*kernel) {
	for _, kind := range []string{"delta", "dkdv0", "dkdv1", "dq0", "dq_add0", "pkv0", "pq0", "pkvk0", "pqk0"} {
		var c []*kernel
		for _, k := range live {
			if (k.kind == kind || fmt.Sprint(k.kind, k.storeDS) == kind) && k.ablate == 0 && len(k.times[n]) > 0 {
				c = append(c, k)
			}
		}
		sort.Slice(c, func(i, j int) bool { return median(c[i].times[n]) < median(c[j].times[n]) })
		list = append(list, c[:min(len(c), 2)]...)
	}
	return list
}

// timeAll times every kernel at every length, then whole passes.
func (l *lab) timeAll() {
	const scratchLimit = 2200 << 20
	for _, n := range lengths() {
		s := shape{*fTokens / n, *fHeads, *fHeads, n, n, 0}
		d := l.cell.d
		count := s.B * s.Hq * n
		h := &data{lse: make([]float32, count)}
		var raw [5][]byte
		for i, x := range []*[]float32{&h.q, &h.k, &h.v, &h.do, &h.o} {
			size := float32(1)
			if i == 4 {
				size = 0.03
			}
			*x, raw[i] = l.periodic(count*d, uint64(i+1), size)
		}
		for i := range h.lse {
			h.lse[i] = float32(math.Log(float64(max(visible(l.cell, s, i%n), 1))) + 0.5)
		}
		chunk := n
		for dsBytes(s, chunk, 192) > scratchLimit {
			chunk /= 2
		}
		b := l.alloc(s, dsBytes(s, chunk, 192))
		for i, x := range []*vk.Buffer{b.q, b.k, b.v, b.do, b.o} {
			check(l.stream.Upload(x, 0, raw[i]))
		}
		check(l.stream.Upload(b.lse, 0, f32bytes(h.lse)))
		rows, keys := []int{}, []int{}
		for i := range 6 {
			rows = append(rows, (i*count/6+n/3*i+i)%count)
			keys = append(keys, (i*count/6+n/5*i+3*i)%count)
		}
		dq, dk, dv := l.reference(s, h, rows, keys)
		delta := l.find("delta", 0)
		l.run(delta, b, s, 0, n, 64, 0)
		check(l.stream.Barrier())
		l.wait()
		l.pairs(b, h)
		limit := 4e-3
		if l.cell.dtype == "bf16" {
			limit = 3e-2
		}
		var live []*kernel
		for _, k := range l.list {
			if l.bad[k.name()] == "" || k.kind == "delta" {
				live = append(live, k)
			}
		}
		one := func(k *kernel) {
			if k.kind == "dq_add" || k.storeDS != 0 { // of a chunk
				tile := 64
				if k.kind == "dkdv" {
					tile = k.tile
				}
				for at := 0; at < n; at += chunk {
					l.run(k, b, s, at, chunk, tile, 2)
				}
			} else {
				l.run(k, b, s, 0, n, 64, 0)
			}
			check(l.stream.Barrier())
		}
		warm := func(t time.Duration) {
			for start := time.Now(); time.Since(start) < t; {
				for _, k := range live {
					if k.kind == "dkdv" {
						for range 8 {
							one(k)
						}
						break
					}
				}
				l.wait()
			}
		}
		explore := n == lengths()[0]
		if !explore {
			live = l.fastest(live, lengths()[0])
		}
		for _, k := range live {
			fmt.Printf("@begin %s\n", k.name())
			one(k)
			l.wait()
			if !explore || k.ablate != 0 || k.kind == "dq_add" || k.kind == "delta" {
				continue
			}
			what := fmt.Sprintf("length %d", n)
			if k.kind == "dkdv" || strings.HasPrefix(k.kind, "pkv") {
				l.note(k, what+" dk", l.errorAt(b.dk, dk), limit)
				l.note(k, what+" dv", l.errorAt(b.dv, dv), limit)
			} else {
				l.note(k, what+" dq", l.errorAt(b.dq, dq), limit)
			}
		}
		live = slices.DeleteFunc(live, func(k *kernel) bool { return l.bad[k.name()] != "" })
		measure := func(f func()) time.Duration {
			a, err := l.stream.Timestamp()
			check(err)
			f()
			e, err := l.stream.Timestamp()
			check(err)
			l.wait()
			t, err := l.stream.Elapsed(a, e)
			check(err)
			return t
		}
		warm(500 * time.Millisecond)
		for range *fRounds {
			for _, k := range live {
				k.times[n] = append(k.times[n], measure(func() { one(k) }))
			}
		}
		l.passes(b, s, h, n, chunk, live, dq, dk, dv, measure, warm, limit)
		b.close()
	}
	fmt.Println("@begin ")
}

// passes times whole backward passes made of the fastest kernels.
func (l *lab) passes(b *buffers, s shape, h *data, n, chunk int, live []*kernel, dq, dk, dv map[int][]float64, measure func(func()) time.Duration, warm func(time.Duration), limit float64) {
	best := func(kind string, storeDS, nth int) *kernel {
		var c []*kernel
		for _, k := range live {
			if k.kind == kind && k.storeDS == storeDS && k.ablate == 0 {
				c = append(c, k)
			}
		}
		sort.Slice(c, func(i, j int) bool { return median(c[i].times[n]) < median(c[j].times[n]) })
		if nth >= len(c) {
			return nil
		}
		return c[nth]
	}
	delta := l.find("delta", 0)
	type pass struct {
		name  string
		f     func()
		times []time.Duration
	}
	var list []*pass
	if w, q := best("dkdv", 0, 0), best("dq", 0, 0); w != nil && q != nil {
		list = append(list, &pass{name: "7 " + w.name() + " + " + q.name(), f: func() {
			l.run(delta, b, s, 0, n, 64, 0)
			check(l.stream.Barrier())
			l.run(w, b, s, 0, n, 64, 0)
			l.run(q, b, s, 0, n, 64, 0)
			check(l.stream.Barrier())
		}})
	}
	if w, q := best("dkdv", 1, 0), best("dq_add", 0, 0); w != nil && q != nil {
		for _, c := range []int{n, 4096, 2048, 1024} {
			if c > chunk || (c == n && c <= 4096 && n != c) {
				continue
			}
			list = append(list, &pass{name: fmt.Sprintf("5 %s + %s chunk %d", w.name(), q.name(), c), f: func() {
				l.run(delta, b, s, 0, n, 64, 0)
				check(l.stream.Barrier())
				for at := 0; at < n; at += c {
					l.run(w, b, s, at, c, w.tile, 0)
					check(l.stream.Barrier())
					flags := uint32(0)
					if at > 0 {
						flags |= 1
					}
					if at+c >= n {
						flags |= 2
					}
					l.run(q, b, s, at, c, w.tile, flags)
					check(l.stream.Barrier())
				}
			}})
		}
	}
	seen := map[string]bool{}
	list = slices.DeleteFunc(list, func(p *pass) bool { dup := seen[p.name]; seen[p.name] = true; return dup })
	worst := map[string]float64{}
	for _, p := range list {
		fmt.Printf("@begin pass %s\n", p.name)
		check(l.stream.Fill(vk.BufferRange{Buffer: b.dq, Size: b.dq.Size()}, 0x7fff7fff))
		check(l.stream.Barrier())
		p.f()
		l.wait()
		worst[p.name] = max(l.errorAt(b.dq, dq), l.errorAt(b.dk, dk), l.errorAt(b.dv, dv))
	}
	warm(500 * time.Millisecond)
	for range *fRounds {
		for _, p := range list {
			p.times = append(p.times, measure(p.f))
		}
	}
	for _, p := range list {
		t := median(p.times)
		speed := 2.5 * l.flops(n) / t.Seconds() / 1e12
		state := ""
		if !(worst[p.name] < limit) {
			state = " WRONG"
		}
		fmt.Printf("PASS %s d%d causal %d length %5d: %8.3f ms %4.0f TFLOP/s err %.1e%s  %s\n", l.cell.dtype, l.cell.d, l.cell.causal, n, t.Seconds()*1e3, speed, worst[p.name], state, p.name)
		emit(map[string]any{"pass": p.name, "dtype": l.cell.dtype, "d": l.cell.d, "causal": l.cell.causal, "length": n, "us": t.Seconds() * 1e6, "tflops": speed, "err": worst[p.name]})
	}
}
