//go:build !cgo

package cudapath

// This file stands in for cua_cgo.go in builds without cgo. Such a build loads no driver, so no
// context exists and none of these functions is called.

const hasCUDA = false

type cuaAPI struct{}

const none = -1

func cuaOpen(string) (*cuaAPI, string)                            { return nil, noCUDA }
func cuaInit(_ *cuaAPI, _, _ *int32) int32                        { return none }
func cuaErrorName(*cuaAPI, int32) string                          { return "" }
func cuaDevice(*cuaAPI, int) (d DeviceInfo, _ int32)              { return d, none }
func cuaRetain(*cuaAPI, int32, *uint64) int32                     { return none }
func cuaRelease(*cuaAPI, int32)                                   {}
func cuaContextDevice(*cuaAPI, uint64, *int32) int32              { return none }
func cuaStreamContext(_ *cuaAPI, _, _ uint64, _ *uint64) int32    { return none }
func cuaStreamCapturing(_ *cuaAPI, _, _ uint64, _ *int32) int32   { return none }
func cuaMemAlloc(_ *cuaAPI, _, _ uint64, _ *uint64) int32         { return none }
func cuaMemFree(_ *cuaAPI, _, _ uint64) int32                     { return none }
func cuaStreamCreate(*cuaAPI, uint64, *uint64) int32              { return none }
func cuaStreamDestroy(_ *cuaAPI, _, _ uint64)                     {}
func cuaStreamPoll(_ *cuaAPI, _, _, _ uint64) int32               { return none }
func cuaEventCreate(*cuaAPI, uint64, *uint64) int32               { return none }
func cuaEventDestroy(_ *cuaAPI, _, _ uint64)                      {}
func cuaEventRecord(_ *cuaAPI, _, _, _ uint64) int32              { return none }
func cuaEventElapsed(_ *cuaAPI, _, _, _ uint64, _ *float32) int32 { return none }
func cuaModuleLoad(*cuaAPI, uint64, []byte) (log string, module uint64, code int32) {
	return "", 0, none
}
func cuaModuleUnload(_ *cuaAPI, _, _ uint64) {}
func cuaFunction(_ *cuaAPI, _, _ uint64, _ string, _, _ int32, _ *uint64, _, _ *int32) int32 {
	return none
}
func cuaLaunchesEarly(*cuaAPI) bool                                 { return false }
func cuaLaunch(_ *cuaAPI, _, _ uint64, _ *cudaCall) (string, int32) { return "", none }
func cuaLaunchParams(_ *cuaAPI, _, _ uint64, _ *backwardInvocation) (string, int32) {
	return "", none
}
func cuaImportMemory(_ *cuaAPI, _ uint64, _ int32, _ uint64, _ bool, _, _ *uint64) (string, int32) {
	return "", none
}
func cuaDropMemory(_ *cuaAPI, _, _, _ uint64)                 {}
func cuaImportTimeline(*cuaAPI, uint64, int32, *uint64) int32 { return none }
func cuaDropTimeline(_ *cuaAPI, _, _ uint64)                  {}
func cuaSignal(_ *cuaAPI, _, _, _, _ uint64) int32            { return none }
func cuaWait(_ *cuaAPI, _, _, _, _ uint64) int32              { return none }
func cuaAlloc(_ *cuaAPI, _ uint64, _ int32, _ uint64, _, _, _ *uint64) (string, int32) {
	return "", none
}
func cuaFree(_ *cuaAPI, _, _, _, _ uint64)                        {}
func cuaExport(_ *cuaAPI, _, _ uint64, _ *int32) int32            { return none }
func cuaCopyIn(_ *cuaAPI, _, _, _ uint64, _ []byte) int32         { return none }
func cuaCopyOut(_ *cuaAPI, _, _ uint64, _ []byte, _ uint64) int32 { return none }
func cuaCopy(_ *cuaAPI, _, _, _, _, _ uint64) int32               { return none }
func cuaFill(_ *cuaAPI, _, _, _ uint64, _ uint32, _ uint64) int32 { return none }
