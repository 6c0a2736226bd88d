package vk

/*
#cgo CFLAGS: -O2 -Wall
#cgo LDFLAGS: -ldl -lpthread
#include "host.h"
#include <stdlib.h>

// The recording path and what follows it: the arguments do not outlive the call,
// so a caller's push constants may live on its stack.
#cgo noescape vka_cmd_dispatch
#cgo nocallback vka_cmd_dispatch
#cgo noescape vka_cmd_launch
#cgo nocallback vka_cmd_launch
#cgo noescape vka_descriptor_set
#cgo nocallback vka_descriptor_set
#cgo noescape vka_timeline_value
#cgo nocallback vka_timeline_value
#cgo noescape vka_submit
#cgo nocallback vka_submit
#cgo noescape vka_query_results
#cgo nocallback vka_query_results
*/
import "C"

import (
	"bytes"
	"strings"
	"unsafe"

	vulkan "github.com/goki/vulkan"
)

// u64 and u32 convert pointers to Go numbers for results of C functions.
func u64(p *uint64) *C.uint64_t { return (*C.uint64_t)(unsafe.Pointer(p)) }
func u32(p *uint32) *C.uint32_t { return (*C.uint32_t)(unsafe.Pointer(p)) }

func goResult(r C.VkResult) vulkan.Result { return vulkan.Result(r) }

// text reads a C character array of a driver.
func text(a []C.char) string {
	b := unsafe.Slice((*byte)(unsafe.Pointer(&a[0])), len(a))
	if i := bytes.IndexByte(b, 0); i >= 0 {
		b = b[:i]
	}
	return valid(string(b))
}

// valid makes a text of a driver UTF-8, as Vulkan wants it: others write it into files and to terminals. A
// driver that cuts a name may cut a character.
func valid(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

func uuid(a [16]C.uint8_t) (u [16]byte) {
	for i, c := range a {
		u[i] = byte(c)
	}
	return u
}
