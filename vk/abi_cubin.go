// Structures of VK_NVX_binary_import.

package vk

import (
	"structs"
	"unsafe"
)

type vkCuModuleCreateInfoNVX struct {
	_        structs.HostLayout
	vkHead   `type:"1000029000"`
	dataSize uint64
	pData    unsafe.Pointer
}

type vkCuFunctionCreateInfoNVX struct {
	_      structs.HostLayout
	vkHead `type:"1000029001"`
	module uint64
	pName  *byte
}

type vkCuLaunchInfoNVX struct {
	_              structs.HostLayout
	vkHead         `type:"1000029002"`
	function       uint64
	gridDimX       uint32
	gridDimY       uint32
	gridDimZ       uint32
	blockDimX      uint32
	blockDimY      uint32
	blockDimZ      uint32
	sharedMemBytes uint32
	paramCount     uint64
	pParams        *unsafe.Pointer
	extraCount     uint64
	pExtras        *unsafe.Pointer
}
