package cudapath_test

import (
	"testing"

	"vkattn/cudapath"
	"vkattn/internal/apiwalk"
	"vkattn/vk"
)

// Nothing that a caller can do to the package panics: what the tests of the driver
// leave out are objects that nobody made, and machines without CUDA.
func TestNothingExportedPanics(t *testing.T) {
	apiwalk.Walk(t, apiwalk.Package{
		Name: "cudapath", Folder: ".", Matches: apiwalk.Matching(vk.ErrInvalid, vk.ErrClosed, vk.ErrUnsupported),
		Functions: map[string]any{"Available": cudapath.Available, "ContextOf": cudapath.ContextOf, "Devices": cudapath.Devices, "Kernels": cudapath.Kernels, "StreamOf": cudapath.StreamOf,
			"Match": cudapath.Match, "Missing": cudapath.Missing, "MissingOn": cudapath.MissingOn, "Open": cudapath.Open,
			"OpenDevice": cudapath.OpenDevice, "Record": cudapath.Record, "UseWorkspace": cudapath.UseWorkspace, "WrapMemory": cudapath.WrapMemory, "WrapStream": cudapath.WrapStream, "Workspace": cudapath.Workspace},
		// The driver follows a made-up context.
		Exact: map[string][]any{"OpenDevice": {cudapath.DeviceOptions{Device: "none"}}},
		Types: []any{cudapath.Context{}, cudapath.DeviceInfo{}, cudapath.Error{}, cudapath.Event{}, cudapath.Memory{},
			cudapath.Semaphore{}, cudapath.Stream{}},
	})
}
