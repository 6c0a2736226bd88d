// Package shaders holds the compute kernels: GLSL sources, the SPIR-V they
// compile to, and a reader that tells what a module asks of a device.
//
// The catalogue names every module. `go run ./shaders/build` compiles it; the
// SPIR-V is committed, so that building and using the library needs no shader
// compiler.
package shaders

import "slices"

// Variant is one entry of the catalogue: a source file, the macros it is
// compiled with, and the environment it is compiled for.
type Variant struct {
	Name    string
	Source  string   // file in this folder
	Defines []string // NAME or NAME=value
	Target  string   // oldest Vulkan version that must accept the module
	SPIRV   string   // SPIR-V version
}

// Catalog lists every module. A name is made of the kernel, the storage type where
// the module is compiled for one, the variant, and how the module reaches memory:
// ssbo (storage buffer descriptors) or bda (buffer device addresses). Variants are
// general (takes the options of a call) and decode (likewise, for few query rows). With
// ssbo these two and the backward kernels of a tier read their parameters from a buffer.
func Catalog() []Variant {
	// Kernels for every device use SPIR-V 1.3, the version that Vulkan 1.1 guarantees.
	core := func(name, source string, defines ...string) Variant {
		return Variant{Name: name, Source: source, Defines: defines, Target: "vulkan1.1", SPIRV: "spv1.3"}
	}
	list := []Variant{
		core("scalar_ssbo", "forward_scalar.comp", "BDA=0"),
		core("scalar_bda", "forward_scalar.comp", "BDA=1"),
		core("scalar_general_ssbo", "forward_scalar_general.comp", "BDA=0", "GENERAL=1"),
		core("scalar_general_bda", "forward_scalar_general.comp", "BDA=1", "GENERAL=1"),
		core("tile_map_ssbo", "tile_map.comp", "BDA=0", "GENERAL=1"),
		core("tile_map_bda", "tile_map.comp", "BDA=1", "GENERAL=1"),
		core("convert_ssbo", "convert.comp", "BDA=0", "GENERAL=1"),
		core("convert_bda", "convert.comp", "BDA=1", "GENERAL=1"),
		core("combine_ssbo", "combine.comp", "BDA=0"),
		core("combine_bda", "combine.comp", "BDA=1"),
		core("merge_ssbo", "merge.comp", "BDA=0"),
		core("merge_bda", "merge.comp", "BDA=1"),
		core("append_ssbo", "append.comp", "BDA=0"),
		core("append_bda", "append.comp", "BDA=1"),
		core("backward_tile_map_ssbo", "tile_map.comp", "BDA=0", "GENERAL=1", "OF_GRADIENTS=1"),
		core("backward_tile_map_bda", "tile_map.comp", "BDA=1", "GENERAL=1", "OF_GRADIENTS=1"),
		core("backward_delta_ssbo", "backward_delta.comp", "BDA=0"),
		core("backward_delta_bda", "backward_delta.comp", "BDA=1"),
		core("backward_sinks_ssbo", "backward_sinks.comp", "BDA=0"),
		core("backward_sinks_bda", "backward_sinks.comp", "BDA=1"),
		core("plain_gemm_scalar_bda", "plain_gemm_scalar.comp"),
		core("plain_softmax_bda", "plain_softmax.comp"),
		core("peak_fma_bda", "peak.comp", "PRODUCTS=0"),
		core("copy_bda", "copy.comp", "COPY=1"),
		core("read_bda", "copy.comp", "COPY=0"),
	}
	// Tables of modifiers take descriptors.
	list = append(list, core("backward_scalar_table_ssbo", "backward_scalar_table.comp", "BDA=0", "GENERAL=1"),
		core("backward_table_sum_ssbo", "backward_table_sum.comp", "BDA=0"))
	for _, kernel := range []string{"lse", "q", "kv", "bias"} {
		name, source := "backward_scalar_"+kernel, "backward_scalar_"+kernel+".comp"
		list = append(list, core(name+"_ssbo", source, "BDA=0", "GENERAL=1"), core(name+"_bda", source, "BDA=1", "GENERAL=1"))
	}
	for _, storage := range []struct{ name, define string }{{"f16", "DTYPE_F16"}, {"bf16", "DTYPE_BF16"}} {
		list = append(list, Variant{Name: "fragment_probe_" + storage.name, Source: "fragment_probe.comp",
			Defines: []string{storage.define}, Target: "vulkan1.2", SPIRV: "spv1.5"},
			Variant{Name: "plain_gemm_coopmat_" + storage.name + "_bda", Source: "plain_gemm_coopmat.comp",
				Defines: []string{storage.define}, Target: "vulkan1.2", SPIRV: "spv1.5"},
			Variant{Name: "peak_coopmat_" + storage.name + "_bda", Source: "peak.comp",
				Defines: []string{storage.define, "PRODUCTS=1"}, Target: "vulkan1.2", SPIRV: "spv1.5"})
	}
	for _, tier := range []struct{ name, define, target, spirv string }{
		{"coopmat", "NV2=0", "vulkan1.2", "spv1.5"},
		{"coopmat2", "NV2=1", "vulkan1.3", "spv1.6"}, // what SPV_NV_cooperative_matrix2 asks for
	} {
		for _, storage := range []struct{ name, define string }{{"f16", ""}, {"bf16", "DTYPE_BF16"}} {
			for _, access := range []struct{ name, define string }{{"ssbo", "BDA=0"}, {"bda", "BDA=1"}} {
				v := Variant{
					Name: tier.name + "_" + storage.name + "_" + access.name, Source: "forward_coopmat.comp",
					Defines: []string{tier.define, access.define}, Target: tier.target, SPIRV: tier.spirv,
				}
				if storage.define != "" {
					v.Defines = append(v.Defines, storage.define)
				}
				general := v
				general.Name = tier.name + "_" + storage.name + "_general_" + access.name
				general.Source = "forward_coopmat_general.comp"
				general.Defines = append(slices.Clone(v.Defines), "GENERAL=1")
				decode := general
				decode.Name = tier.name + "_" + storage.name + "_decode_" + access.name
				decode.Source = "decode_coopmat.comp"
				list = append(list, v, general, decode)
				for _, kernel := range []string{"lse", "q", "kv", "add"} {
					backward := general
					backward.Name = "backward_" + tier.name + "_" + storage.name + "_" + kernel + "_" + access.name
					backward.Source = "backward_coopmat_" + kernel + ".comp"
					list = append(list, backward)
				}
			}
		}
		for _, access := range []struct{ name, define string }{{"ssbo", "BDA=0"}, {"bda", "BDA=1"}} {
			for _, terms := range []struct{ name, define string }{{"", "TERMS_BF16"}, {"_f16_terms", "TERMS_F16"}} {
				list = append(list, Variant{
					Name: tier.name + "_f32" + terms.name + "_" + access.name, Source: "forward_coopmat_f32.comp",
					Defines: []string{tier.define, access.define, "DTYPE_F32", terms.define}, Target: tier.target, SPIRV: tier.spirv,
				})
				for _, kernel := range []string{"lse", "kv", "add", "scores", "product"} {
					list = append(list, Variant{
						Name:    "backward_" + tier.name + "_f32" + terms.name + "_" + kernel + "_" + access.name,
						Source:  "backward_coopmat_f32_" + kernel + ".comp",
						Defines: []string{tier.define, access.define, "DTYPE_F32", "GENERAL=1", terms.define}, Target: tier.target, SPIRV: tier.spirv,
					})
				}
			}
		}
	}
	return list
}
