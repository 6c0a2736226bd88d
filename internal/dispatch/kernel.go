package dispatch

import (
	"cmp"
	"slices"

	"vkattn/internal/problem"
	"vkattn/shaders"
	"vkattn/vk"
)

// DescribeKernel describes a module and its constants to package vk. Push constants,
// bindings and shared memory are those that the SPIR-V declares.
func DescribeKernel(m *shaders.Module, local uint32, constants map[uint32]uint32) (*vk.PipelineDesc, error) {
	r, err := m.Reflect()
	if err != nil {
		return nil, err
	}
	shared, err := r.SharedBytes(constants)
	if err != nil {
		return nil, err
	}
	desc := &vk.PipelineDesc{
		Code:           m.Code,
		Hash:           m.Hash,
		PushBytes:      uint32(r.PushConstantBytes()),
		StorageBuffers: uint32(len(r.Bindings())),
		LocalSize:      [3]uint32{local, 1, 1},
		SharedBytes:    shared,
		NoRobustness:   true, // argument checks and the kernel's own bounds prove every index
	}
	for id, value := range constants {
		desc.Constants = append(desc.Constants, vk.SpecConstant{ID: id, Value: value})
	}
	slices.SortFunc(desc.Constants, func(a, b vk.SpecConstant) int { return cmp.Compare(a.ID, b.ID) })
	return desc, nil
}

// ModuleName returns the name of a kernel's module for an access.
func ModuleName(kernel string, a problem.Access) string {
	if a == problem.AccessDescriptors {
		return kernel + "_ssbo"
	}
	return kernel + "_bda"
}

// BoolConstant is the value of a boolean specialization constant.
func BoolConstant(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}
