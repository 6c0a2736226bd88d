package nccl_test

import (
	"testing"

	"vkattn/internal/apiwalk"
	"vkattn/internal/nccl"
	"vkattn/vk"
)

// Nothing that a caller can do to the package panics. A made-up handle may not be passed to
// Wrap.
func TestNothingExportedPanics(t *testing.T) {
	t.Setenv(nccl.LibraryEnv, "off")
	apiwalk.Walk(t, apiwalk.Package{
		Name: "nccl", Folder: ".", Matches: apiwalk.Matching(vk.ErrInvalid, vk.ErrClosed, vk.ErrUnsupported),
		Functions: map[string]any{"Join": nccl.Join, "NewID": nccl.NewID, "Version": nccl.Version, "Wrap": nccl.Wrap},
		Types:     []any{nccl.Comm{}, nccl.Error{}},
	})
}
