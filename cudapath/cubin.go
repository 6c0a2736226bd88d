package cudapath

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"vkattn/attention"
	"vkattn/internal/plan"
	"vkattn/internal/problem"
	"vkattn/vk"
)

// Tier cubin: the kernels that Vulkan launches in its command buffers
// (VK_NVX_binary_import). No CUDA context is involved, and no Context chooses them. This
// file finds and loads them, cubin_launch.go records them.

// cubinFamily is the family of these kernels in the launch tables.
const cubinFamily = "cubin"

// cubinArchitecture is an architecture that the kernels of cubinFamily are compiled for.
type cubinArchitecture struct {
	name         string // of the compiler
	major, least int    // compute capability: a cubin runs on devices of its major version, from this minor version on
	only         bool   // on no later minor version
	slow         bool   // slower than cooperative matrices
}

// cubinArchitectures are tried in this order. The kernels for sm_90a use wgmma and the TMA;
// those for sm_80 run on Ampere and Ada. Compiled for sm_90, the latter reach 242 TFLOP/s on an
// H200 where coopmat2 reaches 344 (head dim 128, length 4096).
var cubinArchitectures = [...]cubinArchitecture{
	{name: "sm_90a", major: 9, least: 0, only: true},
	{name: "sm_80", major: 8, least: 0, slow: true},
}

func (a cubinArchitecture) runs(major, minor int) bool {
	return major == a.major && (minor == a.least || !a.only && minor > a.least)
}

// architectureNames is cubinArchitectures for messages.
func architectureNames() string {
	var names []string
	for _, a := range cubinArchitectures {
		names = append(names, a.name)
	}
	return strings.Join(names, ", ")
}

// cubin finds the kernels of cubinFamily for an architecture and a problem: those with the smallest sufficient head dims. If
// there are none, it says why.
func (t *table) cubin(arch string, p *problem.CUDAProblem) (list []*Kernel, why string) {
	some, dtype, d, dv, kind := false, p.DType.String(), p.HeadDim, p.HeadDimV, ""
	for i := range t.cubins {
		k := &t.cubins[i]
		if k.Arch != arch || k.DType != dtype || k.General != (p.Options != "") || k.Paged != (p.PageSize > 0) || !k.General && k.Causal != p.Causal {
			continue
		}
		some = true
		if d <= k.D && dv <= k.DV && (len(list) == 0 || k.D == list[0].D && k.DV == list[0].DV) {
			list = append(list, k)
		}
	}
	if p.Options != "" {
		kind = p.Options + ", "
	}
	switch {
	case !some:
		return nil, fmt.Sprintf("there is none for %s%s on %s", kind, dtype, arch)
	case len(list) == 0:
		return nil, fmt.Sprintf("there is none for %shead dims %d/%d on %s", kind, d, dv, arch)
	}
	return list, ""
}

// fastest returns the kernel of list that is predicted to take the least time: each CTA takes
// as many row blocks as the busiest one, and a block takes as long as it has rows, at the
// speed of the kernel. Under a causal mask the busiest CTA takes pairs of blocks, or one block
// that is as long as a pair.
func fastest(list []*Kernel, s *attention.Shape, cores uint32) *Kernel {
	time := func(k *Kernel) float64 {
		blocks, ctas := k.tiles(s, s.B).count(), uint64(max(cores, 1))
		if k.Causal {
			ctas *= 2
		}
		rounds := (blocks + ctas - 1) / ctas
		return float64(rounds) * float64(k.Rows) / cmp.Or(k.Speed, 1)
	}
	return slices.MinFunc(list, func(a, b *Kernel) int { return cmp.Compare(time(a), time(b)) })
}

// cubinImage reads the cubin of a kernel of cubinFamily.
func (t *table) cubinImage(k *Kernel) ([]byte, error) {
	name := k.Module + "." + k.Arch + ".cubin"
	file, ok := t.file(name)
	if !ok {
		return nil, unsupported("load a cubin", "this build has no %s", name)
	}
	return t.read(file)
}

// binaryImport is the operation that errors of tier cubin name.
const binaryImport = "VK_NVX_binary_import"

// needImport is that extension, in an error of the operation.
var needImport = vk.Need{Name: "it", Have: func(c *vk.Caps) bool { return c.BinaryImport }}

// cubinBackend implements problem.Cubins.
type cubinBackend struct{}

func init() { plan.RegisterCubins(cubinBackend{}) }

// Check implements problem.Cubins.
func (cubinBackend) Check(dev *vk.Device, info *vk.DeviceInfo, t attention.DType) error {
	if why := info.Caps.Without(needImport); why != "" {
		return unsupported(binaryImport, "%s", why)
	}
	if t == attention.F32 {
		return unsupported(binaryImport, "there are no kernels for %v", t)
	}
	if dev != nil {
		c, err := cubinsOf(dev)
		if err != nil {
			return err
		}
		_, err = c.arch()
		return err
	}
	// The extension does not report the architecture. CUDA does, where it is installed.
	if d, err := Match(info); err == nil && !slices.ContainsFunc(cubinArchitectures[:], func(a cubinArchitecture) bool { return a.runs(d.Major, d.Minor) }) {
		return unsupported(binaryImport, "its kernels are for %s, the device has compute capability %d.%d", architectureNames(), d.Major, d.Minor)
	}
	return nil
}

// Choose implements problem.Cubins. It loads the module of the kernel: whether the device
// runs code of an architecture shows only then.
func (cubinBackend) Choose(dev *vk.Device, p problem.CUDAProblem) (choice problem.CubinChoice, err error) {
	const op = "choose a cubin"
	if why := dev.Caps().Without(needImport); why != "" {
		return choice, unsupported(binaryImport, "%s", why)
	}
	c, err := cubinsOf(dev)
	if err != nil {
		return choice, err
	}
	arch, err := c.arch()
	if err != nil {
		return choice, err
	}
	if p.KV != attention.KVSame {
		return c.chooseDecode(arch, &p)
	}
	list, why := c.table.cubin(arch, &p)
	if len(list) == 0 {
		return choice, unsupported(op, "%s", why)
	}
	k := fastest(list, &p.Shape, dev.Caps().ShaderCores)
	switch {
	case p.Align < alignment:
		return choice, unsupported(op, "head dims, offsets and strides have to be multiples of %d elements, these are of %d", alignment, p.Align)
	case uint64(k.Shared) > uint64(dev.Caps().Limits.MaxSharedBytes):
		return choice, unsupported(op, "%d bytes of shared memory a CTA, the device has %d", k.Shared, dev.Caps().Limits.MaxSharedBytes)
	}
	parts := k.parts(&p.Shape)
	part, _ := parts.Next()
	first := partOf(&p.Shape, part)
	one := k.tiles(&first, first.B)
	if one.count() > math.MaxInt32 {
		return choice, unsupported(op, "%d tiles, it counts them in 31 bits", one.count())
	}
	if most := max(p.Rows, one.count()); k.Sequences && most > maxSequencesRows {
		return choice, unsupported(op, "%d rows of all sequences or tiles, it takes at most 2^30", most)
	}
	if g, err := k.grid(one); !k.persistent() && (err != nil || g[0] > maxGridX || g[1] > maxGridY || g[2] > maxGridY) {
		return choice, unsupported(op, "a grid of %v blocks, the device takes %v", g, [3]int{maxGridX, maxGridY, maxGridY})
	}
	loaded := c.kernel(k)
	if err := loaded.Load(); err != nil {
		return choice, err
	}
	slow := slices.ContainsFunc(cubinArchitectures[:], func(a cubinArchitecture) bool { return a.name == arch && a.slow })
	return problem.CubinChoice{Kernel: loaded, Name: k.Entry, Rows: uint32(k.Rows), Cols: uint32(k.Cols), SharedBytes: uint64(k.Shared), Workgroups: k.rowBlocks(&p), Slow: slow}, nil
}

// cubins has the kernels of cubinFamily on a Vulkan device. It belongs to the device, which
// destroys modules and functions at its end.
type cubins struct {
	dev     *vk.Device
	table   *table
	mu      sync.Mutex
	modules map[string]*vk.Cubin
	kernels map[*Kernel]*cubinKernel
	found   string // architecture of the device; empty: not known yet
}

// cubinsKey is the key of the cubins attached to a device.
var cubinsKey any = new(struct{ _ int })

// attachedCubins is the vk.Attached of cubins.
type attachedCubins struct{ c *cubins }

func (attachedCubins) Detach() {}

func cubinsOf(dev *vk.Device) (*cubins, error) {
	if a, ok := dev.Attached(cubinsKey).(attachedCubins); ok {
		return a.c, nil
	}
	v, err := dev.Attach(cubinsKey, func() (vk.Attached, error) {
		t, err := embedded()
		return attachedCubins{&cubins{dev: dev, table: t, modules: map[string]*vk.Cubin{}, kernels: map[*Kernel]*cubinKernel{}}}, err
	})
	if err != nil {
		return nil, err
	}
	return v.(attachedCubins).c, nil
}

// arch returns the first architecture of cubinArchitectures whose code the device loads. The
// extension reports none, and refuses other code without harm (docs/log/cubin.md).
func (c *cubins) arch() (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var refused error
	for _, a := range cubinArchitectures {
		if c.found != "" {
			break
		}
		i := slices.IndexFunc(c.table.cubins, func(k Kernel) bool { return k.Arch == a.name })
		if i < 0 {
			continue
		}
		if _, err := c.module(&c.table.cubins[i]); err == nil {
			c.found = a.name
		} else if refused == nil || errors.Is(err, vk.ErrDeviceLost) || errors.Is(err, vk.ErrClosed) {
			refused = err
		}
	}
	switch {
	case c.found != "":
		return c.found, nil
	case refused == nil:
		return "", unsupported(binaryImport, "this build has no kernels")
	case errors.Is(refused, vk.ErrDeviceLost) || errors.Is(refused, vk.ErrClosed) || errors.Is(refused, vk.ErrOutOfMemory):
		return "", refused
	}
	return "", unsupported(binaryImport, "the device loads code for none of %s: %v", architectureNames(), refused)
}

// module loads the module of a kernel. c.mu is held.
func (c *cubins) module(k *Kernel) (*vk.Cubin, error) {
	name := k.Module + "." + k.Arch
	if m := c.modules[name]; m != nil {
		return m, nil
	}
	image, err := c.table.cubinImage(k)
	if err != nil {
		return nil, err
	}
	m, err := c.dev.NewCubin(name, image)
	if err != nil {
		return nil, err
	}
	c.modules[name] = m
	return m, nil
}

// kernel returns the kernel of a table entry. Load makes it ready to be recorded.
func (c *cubins) kernel(k *Kernel) *cubinKernel {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kernels[k] == nil {
		c.kernels[k] = &cubinKernel{Kernel: k, c: c}
	}
	return c.kernels[k]
}

// cubinKernel implements problem.CubinKernel.
type cubinKernel struct {
	*Kernel
	c *cubins
	f atomic.Pointer[vk.CubinFunction] // nil: not loaded
}

// Load implements problem.CubinKernel. After a failure the next call tries again.
func (k *cubinKernel) Load() error {
	if k.f.Load() != nil {
		return nil
	}
	k.c.mu.Lock()
	defer k.c.mu.Unlock()
	if k.f.Load() != nil {
		return nil
	}
	m, err := k.c.module(k.Kernel)
	if err != nil {
		return err
	}
	f, err := m.Function(k.Entry)
	if err != nil {
		return err
	}
	k.f.Store(f)
	return nil
}
