// Calls of VK_NVX_binary_import.

package vk

import (
	"unsafe"

	"vkattn/internal/ccall"
)

const maxParams = 64

func hostCreateCubin(d *hostDevice, cubin []byte, module *uint64) Result {
	info := headed(vkCuModuleCreateInfoNVX{
		dataSize: uint64(len(cubin)),
		pData:    unsafe.Pointer(unsafe.SliceData(cubin)),
	})
	return call(d.CreateCuModuleNVX, d.arg(), uintptr(unsafe.Pointer(info)), 0, uintptr(unsafe.Pointer(module)))
}

func hostCreateFunction(d *hostDevice, module uint64, name string, function *uint64) Result {
	info := headed(vkCuFunctionCreateInfoNVX{module: module, pName: cstring(name)})
	return call(d.CreateCuFunctionNVX, d.arg(), uintptr(unsafe.Pointer(info)), 0, uintptr(unsafe.Pointer(function)))
}

// hostCmdLaunch launches a kernel. offsets are those of each parameter in params, as the kernel declares them.
func hostCmdLaunch(d *hostDevice, r *recorder, function uint64, l *CubinLaunch, params []byte, offsets []uint32) {
	r.prepare(d)
	r.values = append(r.values[:0], params...) // the caller's may be on its stack
	for i, offset := range offsets {
		r.params[i] = unsafe.Pointer(&r.values[offset])
	}
	i := &r.launchInfo
	i.function, i.sharedMemBytes, i.paramCount = function, l.SharedBytes, uint64(len(offsets))
	i.gridDimX, i.gridDimY, i.gridDimZ = l.Grid[0], l.Grid[1], l.Grid[2]
	i.blockDimX, i.blockDimY, i.blockDimZ = l.Block[0], l.Block[1], l.Block[2]
	ccall.Run(&r.launch.Frame)
}
