package main

import (
	"encoding/json"
	"fmt"
	"slices"

	"vkattn/cudapath"
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
type entry = cudapath.Kernel

// panels is the tensor map of a tensor that is copied in panels of 64 columns.
func panels(tensor string, rows int) cudapath.Map {
	return cudapath.Map{Tensor: tensor, Box: [4]uint32{64, uint32(rows), 1, 1}, Swizzle: 128}
}

// numbers are macros of numbers, a name and a value in turn.
func numbers(prefix string, parts ...any) (list []string) {
	for i := 0; i < len(parts); i += 2 {
		list = append(list, fmt.Sprintf("%s%s=%d", prefix, parts[i], parts[i+1]))
	}
	return list
}

// isBF16 is the number of a macro.
func isBF16(dtype string) int {
	if dtype == "bf16" {
		return 1
	}
	return 0
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
				Entry: "attn_" + name, Family: family, DType: t.name, D: 576, DV: 576, Any: true, Module: name,
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
				Entry: "attn_" + m.name + "_" + k.step, Family: "ref", DType: t.name, D: 256, DV: 256, Any: true, Module: m.name,
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
