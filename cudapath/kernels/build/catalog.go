package main

import (
	"encoding/json"
	"slices"
)

// module is one thing to compile: a few entry points that a program loads together.
type module struct {
	name    string
	source  string   // file of the kernels folder
	defines []string // "NAME=VALUE"
	ptx     bool     // compiled to PTX for sm_80 and up
	arch    string   // of the cubin; empty: sm_90a
	entries []entry
}

// entry is a line of a launch table (ref.json, ref_backward.json, fa2.json, fa3.json, cubin.json), which the host
// and scripts/cuda_peer.py read.
type entry struct {
	Entry   string      `json:"entry"` // name of the kernel
	Family  string      `json:"family"`
	DType   string      `json:"dtype"`
	D       int         `json:"d"` // largest head dims it takes
	Dv      int         `json:"dv"`
	Causal  bool        `json:"causal"`
	Any     bool        `json:"any"`    // any alignment; otherwise bases, strides and head dims in units of 16 bytes
	Module  string      `json:"module"` // bin/<module>.ptx.gz, bin/<module>.sm_90a.cubin.gz
	Threads int         `json:"threads"`
	Shared  int         `json:"shared"`            // bytes of dynamic shared memory
	Rows    int         `json:"rows"`              // of Q a block
	Cols    int         `json:"cols"`              // of K a tile
	Grid    string      `json:"grid"`              // what x, y and z count
	General bool        `json:"general,omitempty"` // a forward kernel for calls with options, of any alignment, and no others
	Slots   bool        `json:"slots,omitempty"`   // a general kernel for calls with a bias, a mask or dropout, and no others
	Latent  bool        `json:"latent,omitempty"`  // a forward kernel of latent attention
	Tokens  bool        `json:"tokens,omitempty"`  // of latent attention, for calls in which each query row has a list of its keys
	Combine string      `json:"combine,omitempty"` // its entry that combines splits
	Outputs string      `json:"outputs,omitempty"` // of a backward kernel: "stats", "dQ", "dK dV" or "dQ dK dV"
	Dense   bool        `json:"dense,omitempty"`   // a backward kernel without lengths, window and softcap
	Early   bool        `json:"early,omitempty"`   // starts before the kernel of the same call before it ends, for which it waits itself
	DSBytes int         `json:"dSBytes,omitempty"` // of dS that a launch of a backward kernel stores or reads
	Softcap string      `json:"softcap,omitempty"` // of a backward kernel: "yes" or "no" if it is only for calls with or without one
	Maps    []tensorMap `json:"maps,omitempty"`
	Arch    string      `json:"arch,omitempty"`   // of the cubin; empty: sm_90a
	Speed   float64     `json:"speed,omitempty"`  // of a full CTA per row, relative to the kernel of the problem without a speed
	KV      string      `json:"kv,omitempty"`     // storage of K and V that a decode kernel takes
	Blocks  int         `json:"blocks,omitempty"` // CTAs of a decode kernel that a multiprocessor runs at once
	Stages  int         `json:"stages,omitempty"` // KV tiles of the ring of a warp
}

// tensorMap is a CUtensorMap parameter, (dim, row, head, batch) with element strides of the tensor.
type tensorMap struct {
	Tensor  string `json:"tensor"`
	Box     []int  `json:"box"`
	Swizzle int    `json:"swizzle"`
}

const (
	gridRowsHeadsBatch   = "rows,heads,batch"
	gridKeysKVHeadsBatch = "keys,kvheads,batch"
	gridKeys             = "keys*kvheads*batch"
	gridDecode           = "splits,kvheads,batch" // and row tiles in x
)

// catalog lists every module, in the order of the manifest.
func catalog() []module {
	return slices.Concat(refModules(), refBackwardModules(), appendModules(), fa2Modules(), fa2BackwardModules(), fa3Modules(), latentModules(), fa3BackwardModules(),
		decodeModules("decode", "", cudaDecodeTiles, 227<<10), cubinModules())
}

// refTypes are the storage types of the validation kernels.
var refTypes = []struct{ name, element string }{{"f16", "__half"}, {"bf16", "__nv_bfloat16"}, {"f32", "float"}}

// The validation kernel: one entry a type.
func refModules() []module { return modulesOfTypes("ref", "reference.cu", 64, 64) }

// modulesOfTypes lists the kernels of a family that has one for each storage type.
func modulesOfTypes(family, source string, rows, cols int) []module {
	var list []module
	for _, t := range refTypes {
		name := family + "_" + t.name
		list = append(list, module{
			name: name, source: source, ptx: true,
			defines: []string{"ELEMENT=" + t.element, "ENTRY=attn_" + name},
			entries: []entry{{
				Entry: "attn_" + name, Family: family, DType: t.name, D: 576, Dv: 576, Any: true, Module: name,
				Threads: 256, Rows: rows, Cols: cols, Grid: gridRowsHeadsBatch,
			}},
		})
	}
	return list
}

// refBackwardModules lists the validation kernels of the backward pass: three entries a type.
func refBackwardModules() []module {
	var list []module
	for _, t := range refTypes {
		m := module{
			name: "ref_" + t.name + "_backward", source: "reference_backward.cu", ptx: true,
			defines: []string{"ELEMENT=" + t.element, "TYPE=" + t.name},
		}
		for _, k := range []struct{ step, outputs, grid string }{
			{"stats", "stats", gridRowsHeadsBatch}, {"dq", "dQ", gridRowsHeadsBatch}, {"dkdv", "dK dV", gridKeysKVHeadsBatch},
		} {
			m.entries = append(m.entries, entry{
				Entry: "attn_" + m.name + "_" + k.step, Family: "ref", DType: t.name, D: 256, Dv: 256, Any: true, Module: m.name,
				Threads: 256, Rows: 64, Cols: 64, Grid: k.grid, Outputs: k.outputs,
			})
		}
		list = append(list, m)
	}
	return list
}

// appendModules lists the kernels that append to a cache: one entry a type. A warp takes a row at a time.
func appendModules() []module { return modulesOfTypes("append", "append.cu", 8, 1) }

// tables are the files generated from the catalogue, by name.
func tables(modules []module) (map[string][]byte, error) {
	families := map[string][]entry{}
	for _, m := range modules {
		for _, e := range m.entries {
			name := e.Family
			if e.Outputs != "" {
				name += "_backward"
			}
			families[name] = append(families[name], e)
		}
	}
	files := map[string][]byte{}
	for family, list := range families {
		text := []byte("[\n")
		for i, e := range list {
			line, err := json.Marshal(e)
			if err != nil {
				return nil, err
			}
			text = append(append(text, '\t'), line...)
			if i < len(list)-1 {
				text = append(text, ',')
			}
			text = append(text, '\n')
		}
		files[family+".json"] = append(text, "]\n"...)
	}
	return files, nil
}
