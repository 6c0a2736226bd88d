//go:build !windows

package vk

import (
	"runtime"
	"testing"
	"unicode/utf8"
	"unsafe"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/require"
)

// Drivers cut their texts to fit, or write them in another encoding. What is no UTF-8 would go raw into files.
func TestTextsOfADriverAreUTF8(t *testing.T) {
	needDriver(t)
	in, err := newInstance(0, nil)
	require.NoError(t, err)
	defer closeInstance(in)
	replace := func(place unsafe.Pointer, with func(real uintptr) func(device, out uintptr)) {
		function := (*uintptr)(place)
		was := *function
		t.Cleanup(func() { *function = was })
		*function = purego.NewCallback(with(was))
	}
	write := func(at uintptr, text string) {
		copy(unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&at))), len(text)+1), text+"\x00")
	}
	const name, cut = "Karte \xff\xfe 7", "treiber \xc3"
	replace(unsafe.Pointer(&in.GetPhysicalDeviceProperties), func(real uintptr) func(device, out uintptr) {
		return func(device, out uintptr) {
			purego.SyscallN(real, device, out)
			write(out+20, name) // behind five 32-bit numbers
		}
	})
	replace(unsafe.Pointer(&in.GetPhysicalDeviceProperties2), func(real uintptr) func(device, out uintptr) {
		return func(device, out uintptr) {
			purego.SyscallN(real, device, out)
			type header struct {
				kind uint32
				next uintptr
			}
			for p := out; p != 0; {
				h := *(**header)(unsafe.Pointer(&p))
				if h.kind == 1000196000 { // VkPhysicalDeviceDriverProperties
					write(p+20, cut)
					write(p+20+256, cut)
				}
				p = h.next
			}
		}
	})
	probes, err := probeAll(in)
	require.NoError(t, err)
	runtime.KeepAlive(in)
	for _, p := range probes {
		for _, text := range []string{p.info.Name, p.info.DriverName, p.info.DriverInfo} {
			require.True(t, utf8.ValidString(text), "%q", text)
		}
		require.Equal(t, "Karte \uFFFD 7", p.info.Name)
	}
}
