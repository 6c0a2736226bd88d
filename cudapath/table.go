package cudapath

import (
	"bytes"
	"cmp"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"

	"vkattn/attention"
)

// The kernels: tables that say how each entry point is launched, and the modules that have
// them, <module>.ptx and <module>.<architecture>.cubin, compressed (.gz) or not.
//
//go:embed kernels/*.json kernels/bin
var embeddedFiles embed.FS

// Kernel is an entry of the tables kernels/*.json, which kernels/build writes.
type Kernel struct {
	Entry   string `json:"entry"`  // such as "attn_fa2_f16_d128_causal"
	Family  string `json:"family"` // one of attention.CUDAKernels
	DType   string `json:"dtype"`  // "f16", "bf16" or "f32"
	D       int    `json:"d"`      // largest head dimension of Q and K
	DV      int    `json:"dv"`     // of V and O
	Causal  bool   `json:"causal"` // for a causal mask; family ref does both
	Any     bool   `json:"any"`    // supports any alignment; otherwise bases, strides and head dims in units of 16 bytes
	Module  string `json:"module"` // file in kernels/bin, without its suffix
	Threads int    `json:"threads"`
	Shared  int    `json:"shared"` // bytes of dynamic shared memory
	Rows    int    `json:"rows"`   // query rows of a CTA's tile
	Cols    int    `json:"cols"`   // keys of a CTA's tile
	// Grid names what each dimension of the grid counts, such as "rows,heads,batch";
	// factors are joined by *. "persistent" is as many CTAs as run at once, at most one
	// per tile, or per block of keys of a KV head for a backward kernel of dK and dV.
	Grid string `json:"grid"`
	// General: a forward kernel for calls with options, which others do not take. Sequences: it takes lengths and a window alone; others
	// take any alignment.
	General   bool `json:"general,omitempty"`
	Sequences bool `json:"sequences,omitempty"`
	// Paged: one of Sequences for paged K and V, which the others do not take.
	Paged bool `json:"paged,omitempty"`
	// Slots: a general kernel for calls with options of slots, a bias, a mask or dropout, which the others do not take.
	Slots bool `json:"slots,omitempty"`
	// Latent: a forward kernel of latent attention (latent.go), for calls with lengths and pages and those without options. Combine
	// is the entry of its module that combines splits.
	// Tokens: for calls in which each query row has a list of its keys, and no others; Offsets: for lists with offsets.
	Latent  bool   `json:"latent,omitempty"`
	Tokens  bool   `json:"tokens,omitempty"`
	Offsets bool   `json:"offsets,omitempty"`
	Combine string `json:"combine,omitempty"`
	// Outputs names what a backward kernel computes: one of backwardOutputs. Empty: a
	// forward kernel.
	Outputs string `json:"outputs,omitempty"`
	// Dense: a backward kernel that takes no lengths, window and softcap.
	Dense bool `json:"dense,omitempty"`
	// Early: the kernel may start before the kernel of the same call before it ends. It waits
	// itself for what it needs.
	Early bool `json:"early,omitempty"`
	// DSBytes is what dS takes that a launch of a backward kernel stores, or reads for dQ. The kernels run
	// in turns, each time for as many of the call's units of work as it holds. 0: they run once.
	DSBytes int `json:"dSBytes,omitempty"`
	// Softcap is "yes" for a backward kernel that needs a softcap, "no" for one that takes none.
	Softcap string `json:"softcap,omitempty"`
	Maps    []Map  `json:"maps,omitempty"` // tensor maps that precede its parameters
	// Arch is the architecture of its cubin, of a kernel of cubinFamily; empty: the first of
	// cubinArchitectures.
	Arch string `json:"arch,omitempty"`
	// Speed is the speed of a forward kernel per row when all CTAs are busy, relative to
	// the kernels for the same problem without a Speed; 0 is 1.
	Speed float64 `json:"speed,omitempty"`
	// KV is the storage of K and V of a decode kernel, of cubinFamily or decodeFamily, and of a latent one that takes rows of a type. Blocks is the CTAs of it that a multiprocessor runs at
	// once. Its grid is decodeGrid.
	KV     string `json:"kv,omitempty"`
	Blocks int    `json:"blocks,omitempty"`
	Stages int    `json:"stages,omitempty"` // KV tiles of the ring of a warp
}

// Map describes how a kernel copies a tensor by the tensor memory accelerator.
type Map struct {
	Tensor  string    `json:"tensor"`  // one of mapTensors
	Box     [4]uint32 `json:"box"`     // of dimension, row, head, batch
	Swizzle int       `json:"swizzle"` // bytes: 0, 32, 64 or 128
}

// table has all entries and the modules.
type table struct {
	kernels  []Kernel // forward
	backward []Kernel
	cubins   []Kernel // forward, launched from Vulkan command buffers
	decodes  []Kernel // the same, of quantized K and V
	// Forward, of few query rows, on tier cuda without Vulkan.
	cudaDecodes []Kernel
	appends     []Kernel // to a cache
	files       fs.FS
	modules     map[string]bool // files of the modules
}

// embedded is the table of this build.
var embedded = sync.OnceValues(func() (*table, error) {
	files, err := fs.Sub(embeddedFiles, "kernels")
	if err != nil {
		return nil, err
	}
	return readTable(files)
})

// Kernels lists the kernels of this build.
func Kernels() ([]Kernel, error) {
	t, err := embedded()
	if err != nil {
		return nil, err
	}
	return slices.Concat(t.kernels, t.backward), nil
}

func readTable(files fs.FS) (*table, error) {
	t := &table{files: files, modules: map[string]bool{}}
	names, err := fs.Glob(files, "*.json")
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		text, err := fs.ReadFile(files, name)
		if err != nil {
			return nil, err
		}
		list, err := parseKernels(text)
		if err != nil {
			return nil, fmt.Errorf("cudapath: kernels/%s: %w", name, err)
		}
		for _, k := range list {
			switch {
			case k.Family == cubinFamily && k.KV != "":
				t.decodes = append(t.decodes, k)
			case k.Family == cubinFamily:
				t.cubins = append(t.cubins, k)
			case k.Family == appendFamily:
				t.appends = append(t.appends, k)
			case k.Family == decodeFamily:
				t.cudaDecodes = append(t.cudaDecodes, k)
			case k.Outputs == "":
				t.kernels = append(t.kernels, k)
			default:
				t.backward = append(t.backward, k)
			}
		}
	}
	// Sorted by size: the first kernel that holds the head dims is the best.
	for _, list := range [][]Kernel{t.kernels, t.backward, t.cubins, t.cudaDecodes} {
		slices.SortStableFunc(list, func(a, b Kernel) int { return cmp.Compare(a.D+a.DV, b.D+b.DV) })
	}
	list, err := fs.ReadDir(files, "bin")
	if err != nil {
		return nil, err
	}
	for _, f := range list {
		t.modules[f.Name()] = true
	}
	return t, nil
}

// parseKernels parses an array of kernels, or an object with one as "kernels".
func parseKernels(text []byte) ([]Kernel, error) {
	list := []Kernel{}
	text = bytes.TrimSpace(text)
	if bytes.HasPrefix(text, []byte("{")) {
		var object struct {
			Kernels []Kernel `json:"kernels"`
		}
		if err := json.Unmarshal(text, &object); err != nil {
			return nil, err
		}
		list = object.Kernels
	} else if err := json.Unmarshal(text, &list); err != nil {
		return nil, err
	}
	for i := range list {
		if err := list[i].validate(); err != nil {
			return nil, fmt.Errorf("entry %d, %s: %w", i, list[i].Entry, err)
		}
	}
	return list, nil
}

// decodeFamily is the family of decode kernels of tier cuda. No call asks for it: K and V that are quantized have no other, and others
// take it where it is predicted to be faster.
const decodeFamily = "decode"

// tileFamily is the family, with the rows of a tile that is not the family's first for its problem. Latent attention is one of its
// own, as it has another pace.
func (k *Kernel) tileFamily() string {
	if k.Latent {
		return k.Family + " latent"
	}
	if k.Speed == 0 {
		return k.Family
	}
	return fmt.Sprintf("%s %d", k.Family, k.Rows)
}

func (k *Kernel) validate() error {
	if k.DV == 0 {
		k.DV = k.D
	}
	switch {
	case k.Entry == "" || k.Module == "":
		return errors.New("entry and module are needed")
	case k.Family != cubinFamily && k.Family != decodeFamily && k.Family != appendFamily && !slices.Contains(attention.CUDAKernels(), k.Family):
		return fmt.Errorf("unknown family %q", k.Family)
	case !slices.Contains([]string{"f16", "bf16", "f32"}, k.DType):
		return fmt.Errorf("unknown dtype %q", k.DType)
	case k.Speed < 0:
		return errors.New("speed has to be above 0")
	case k.D < 1 || k.Rows < 1 || k.Cols < 1 || k.Threads < 1 || k.Shared < 0:
		return errors.New("d, rows, cols and threads have to be above 0")
	case !slices.Contains(append(backwardOutputs[:], ""), k.Outputs):
		return fmt.Errorf("unknown outputs %q", k.Outputs)
	case k.Early && (k.Outputs == "" || k.Outputs == backwardOutputs[0]):
		return errors.New("no kernel of the same call precedes it")
	case len(k.Maps) > maxMaps || k.Family == cubinFamily && len(k.Maps) > maxCubinMaps:
		return fmt.Errorf("%d tensor maps, at most %d", len(k.Maps), maxMaps)
	}
	if k.Family == cubinFamily || k.Family == decodeFamily {
		if k.Arch == "" {
			k.Arch = cubinArchitectures[0].name
		}
		if !slices.ContainsFunc(cubinArchitectures[:], func(a cubinArchitecture) bool { return a.name == k.Arch }) {
			return fmt.Errorf("unknown architecture %q", k.Arch)
		}
	}
	if kv, err := attention.ParseKVType(k.KV); k.Latent && k.KV != "" && (err != nil || !kv.Latent()) {
		return fmt.Errorf("a kernel of latent attention of K %q", k.KV)
	}
	if k.KV != "" && !k.Latent {
		if _, err := attention.ParseKVType(k.KV); err != nil || k.Family != cubinFamily && k.Family != decodeFamily || k.Blocks < 1 {
			return fmt.Errorf("a decode kernel of K and V %q with %d blocks", k.KV, k.Blocks)
		}
		return nil
	}
	for _, m := range k.Maps {
		if _, err := m.tensor(); err != nil {
			return err
		}
		if _, err := m.swizzle(); err != nil {
			return err
		}
	}
	if k.persistent() {
		return nil
	}
	_, err := k.grid(tiles{rows: 1, heads: 1, batch: 1, keys: 1, kvHeads: 1})
	return err
}

// mapTensors are the tensors that maps name, in the order of a call's.
var mapTensors = []string{"q", "k", "v", "o", "dO"}

func (m *Map) tensor() (int, error) {
	if i := slices.Index(mapTensors, m.Tensor); i >= 0 {
		return i, nil
	}
	return 0, fmt.Errorf("a map of tensor %q", m.Tensor)
}

func (m *Map) swizzle() (int, error) {
	if i := slices.Index([]int{0, 32, 64, 128}, m.Swizzle); i >= 0 {
		return i, nil
	}
	return 0, fmt.Errorf("a swizzle of %d bytes", m.Swizzle)
}

// tiles are the factors of a grid: row blocks, query heads and batches, and of backward
// kernels also blocks of keys and KV heads.
type tiles struct{ rows, heads, batch, keys, kvHeads uint64 }

// count is the number of tiles of a forward kernel.
func (t tiles) count() uint64 { return t.rows * t.heads * t.batch }

// units is the number of units of work that the CTAs of a persistent kernel share.
func (k *Kernel) units(t tiles) uint64 {
	if k.Outputs != "" && k.Outputs != "dQ" {
		return t.keys * t.kvHeads * t.batch
	}
	return t.count()
}

func (k *Kernel) persistent() bool { return k.Grid == "persistent" }

// grid evaluates Grid for a kernel that is not persistent.
func (k *Kernel) grid(t tiles) (g [3]uint64, err error) {
	g = [3]uint64{1, 1, 1}
	i, rest, more := 0, k.Grid, true
	for ; more; i++ {
		var dimension string
		dimension, rest, more = strings.Cut(rest, ",")
		if i == len(g) {
			return g, fmt.Errorf("grid %q has more than %d dimensions", k.Grid, len(g))
		}
		for factors := true; factors; {
			var factor string
			factor, dimension, factors = strings.Cut(dimension, "*")
			switch strings.TrimSpace(factor) {
			case "rows":
				g[i] *= t.rows
			case "heads":
				g[i] *= t.heads
			case "batch":
				g[i] *= t.batch
			case "keys":
				g[i] *= t.keys
			case "kvheads":
				g[i] *= t.kvHeads
			case "1":
			default:
				return g, fmt.Errorf("grid %q: %q is not rows, heads, batch, keys or kvheads", k.Grid, factor)
			}
		}
	}
	return g, nil
}
