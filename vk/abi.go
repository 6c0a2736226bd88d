// The part of Vulkan's ABI that this package uses. Names, numbers and layouts are the registry's, in structures of Go;
// members that nobody reads are counted rather than named, and typ and rang stand for words that Go reserves.
// abi_test.go compares all of them with real headers. Non-dispatchable handles are uint64 (see doc.go).

package vk

import (
	"structs"
	"unsafe"

	"vkattn/internal/ccall"
)

// vkHead begins every structure that others can be chained to.
type vkHead struct {
	_     structs.HostLayout
	sType uint32
	pNext unsafe.Pointer
}

func head(structureType uint32) vkHead { return vkHead{sType: structureType} }

// chain inserts s, which begins with a head, behind h.
func (h *vkHead) chain(s *vkHead) { s.pNext, h.pNext = h.pNext, unsafe.Pointer(s) }

// call calls a command that returns a VkResult, or nothing. What an argument uintptr(unsafe.Pointer(p)) points to is on
// the heap and alive during the call, and so is what that points to: see [ccall.Call].
//
//go:uintptrescapes
func call(command uintptr, args ...uintptr) Result {
	return Result(int32(ccall.Call(command, args...)))
}

// cstring is a copy of a text for C.
func cstring(s string) *byte { return unsafe.SliceData(append([]byte(s), 0)) }

// cstrings are copies of texts for C, nil without any.
func cstrings(list []string) **byte {
	var out []*byte
	for _, s := range list {
		out = append(out, cstring(s))
	}
	return unsafe.SliceData(out)
}

// text reads an array of characters of a driver.
func text(a []byte) string { return valid(gotext(a)) }

// gotext is the text up to a zero byte.
func gotext(a []byte) string {
	for i, c := range a {
		if c == 0 {
			return string(a[:i])
		}
	}
	return string(a)
}

// textAt reads a text of C, "" at a null pointer.
func textAt(p *byte) string { return ccall.String(uintptr(unsafe.Pointer(p))) }

func bool32(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}
