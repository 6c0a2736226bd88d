// Package ccall opens shared libraries and calls C functions without cgo, by the calling convention of the system: System
// V and Win64 on amd64, AAPCS64 on arm64. Arguments and results are integers and pointers. The calls run on the system
// stack, as calls of cgo do, and the functions may call back into Go (purego.NewCallback).
//
// C must be given no pointer into a goroutine's stack, which moves when a callback grows it. Arguments of [Call] are
// on the heap by its pragma; a [Frame] puts what it points to on the heap because it is there itself.
package ccall

import (
	"reflect"
	"sync"
	"unsafe"
)

// Library is an open shared library. It stays open for the life of the process: drivers start threads and register exit
// handlers, and unloading them under those is a crash.
type Library uintptr

// MaxArgs is the largest number of arguments of a call.
const MaxArgs = 32

// A Frame describes a call. It is the first field of a structure whose other fields are the arguments, each of eight
// bytes; pointers among them have pointer types, so that the garbage collector sees them. A structure that C takes by
// value is what the convention makes of it: on System V amd64 one of more than 16 bytes is words of its own behind the
// arguments in registers, elsewhere it is a pointer to a copy.
//
// On darwin/arm64 arguments behind the eighth lie packed, so two in a row of 32 bits do not work.
type Frame struct {
	Fn     uintptr // the C function
	Args   int     // number of arguments
	Result uintptr // of a function that returns 32 bits, the lower half
	Next   *Frame  // runs after this frame; nil: none
	Fail   *Frame  // runs after it instead if the lower half of Result is not 0; nil: Next does
}

// End is a frame that ends a run.
var End = new(Frame)

// Size is the number of arguments of a structure of this many bytes that begins with a Frame.
func Size(bytes uintptr) int { return int((bytes - unsafe.Sizeof(Frame{})) / 8) }

// Run makes the call of a frame and of those linked to it, on one thread, and allocates nothing. Frames must not be in
// use by another goroutine.
func Run(f *Frame) { cgocall(run, unsafe.Pointer(f)) }

// Bind looks up the functions that fields of type uintptr are named for, in a structure, and returns the first that the
// library lacks.
func Bind[T any](l Library, to *T) (missing string) {
	t := reflect.TypeFor[T]()
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Type.Kind() != reflect.Uintptr {
			continue
		}
		address, err := l.Symbol(f.Name)
		if err != nil && missing == "" {
			missing = f.Name
		}
		*(*uintptr)(unsafe.Add(unsafe.Pointer(to), f.Offset)) = address
	}
	return missing
}

// String returns the text at an address of C, "" if that is 0.
func String(at uintptr) string {
	if at == 0 {
		return ""
	}
	p := *(*unsafe.Pointer)(unsafe.Pointer(&at)) // not the garbage collector's
	n := 0
	for *(*byte)(unsafe.Add(p, n)) != 0 {
		n++
	}
	return string(unsafe.Slice((*byte)(p), n))
}

// words is a frame of Call.
type words struct {
	Frame
	args [MaxArgs]uintptr
}

// Call calls a C function. An argument made by uintptr(unsafe.Pointer(p)) in the list keeps *p alive and on the heap
// during the call, as it does with syscall.Syscall.
//
//go:uintptrescapes
func Call(fn uintptr, args ...uintptr) uintptr {
	w := frames.Get().(*words)
	w.Fn, w.Args = fn, copy(w.args[:], args)
	if w.Args < len(args) {
		panic("ccall: too many arguments")
	}
	Run(&w.Frame)
	result := w.Result
	frames.Put(w)
	return result
}

var frames = sync.Pool{New: func() any { return new(words) }}

var run uintptr // the assembly function; set by its file

//go:linkname cgocall runtime.cgocall
func cgocall(fn uintptr, arg unsafe.Pointer) int32
