//go:build !cgo || windows

package nccl

// This file stands in for nccl_cgo.go in builds without cgo, and for Windows. Such a build loads no library, so
// only ncclOpen is ever called.

type ncclAPI struct{}

const none = -1

func ncclOpen(_, _ string) (*ncclAPI, string) {
	return nil, "not available in this build, which is without cgo or for Windows"
}
func ncclError(*ncclAPI, int32) string                                { return "" }
func ncclVersion(*ncclAPI, *int32) int32                              { return none }
func ncclUniqueID(*ncclAPI, *ID) int32                                { return none }
func ncclInit(_ *ncclAPI, _ uint64, _ *ID, _, _ int, _ *uint64) int32 { return none }
func ncclWho(*ncclAPI, uint64) (rank, ranks int, code int32)          { return 0, 0, none }
func ncclAsyncError(*ncclAPI, uint64, *int32) int32                   { return none }
func ncclExchange(_ *ncclAPI, _, _, _ uint64, _ []ncclMessage) int32  { return none }
func ncclAllGather(_ *ncclAPI, _, _, _, _, _, _ uint64) int32         { return none }
func ncclAbort(_ *ncclAPI, _, _ uint64) int32                         { return none }
