package ccall

import (
	"runtime"
	"testing"
	"unsafe"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// sums returns a C function that writes its twelve arguments to got and returns their sum.
func sums(got *[12]uintptr) uintptr {
	return purego.NewCallback(func(a, b, c, d, e, f, g, h, i, j, k, l uintptr) uintptr {
		*got = [12]uintptr{a, b, c, d, e, f, g, h, i, j, k, l}
		return a + b + c + d + e + f + g + h + i + j + k + l
	})
}

func TestCallPassesArguments(t *testing.T) {
	var got [12]uintptr
	fn := sums(&got)
	var args []uintptr
	for n := range got {
		args = append(args, uintptr(n+1)<<40|uintptr(n+1))
		padded := append(append([]uintptr{}, args...), make([]uintptr, len(got)-len(args))...)
		var sum uintptr
		for _, a := range args {
			sum += a
		}
		require.Equal(t, sum, Call(fn, padded...))
		require.Equal(t, padded, got[:])
		Call(fn, args...)
		require.Equal(t, args, got[:len(args)], "%d arguments", len(args))
	}
	none := purego.NewCallback(func() uintptr { return 7 })
	require.Equal(t, uintptr(7), Call(none))
	require.Panics(t, func() { Call(none, make([]uintptr, MaxArgs+1)...) })
}

func TestCallTakesTheLargestNumber(t *testing.T) {
	var got [MaxArgs]uintptr
	fn := purego.NewCallback(func(a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, b0, b1, b2, b3, b4, b5, b6, b7, b8, b9,
		c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, d0, d1 uintptr) uintptr {
		got = [MaxArgs]uintptr{a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, b0, b1, b2, b3, b4, b5, b6, b7, b8, b9,
			c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, d0, d1}
		return d1
	})
	var want [MaxArgs]uintptr
	for i := range want {
		want[i] = uintptr(i) * 0x1000000010001
	}
	require.Equal(t, want[MaxArgs-1], Call(fn, want[:]...))
	require.Equal(t, want, got)
}

// list is frames of one argument, ten arguments and none.
type list struct {
	one struct {
		Frame
		a uintptr
	}
	ten struct {
		Frame
		a       [9]uintptr
		pointer *uint64
	}
	none Frame
}

func TestRunMakesTheCallsInOrder(t *testing.T) {
	var order []uintptr
	one := purego.NewCallback(func(a uintptr) uintptr { order = append(order, a); return 11 })
	ten := purego.NewCallback(func(a, b, c, d, e, f, g, h, i uintptr, p *uint64) uintptr {
		order = append(order, a, b, c, d, e, f, g, h, i, uintptr(*p))
		*p = 99
		return 12
	})
	none := purego.NewCallback(func() uintptr { order = append(order, 0); return 13 })
	l := new(list)
	l.one.Frame = Frame{Fn: one, Args: Size(unsafe.Sizeof(l.one)), Next: &l.ten.Frame}
	l.one.a = 1
	l.ten.Frame = Frame{Fn: ten, Args: Size(unsafe.Sizeof(l.ten)), Next: &l.none}
	l.ten.a = [9]uintptr{2, 3, 4, 5, 6, 7, 8, 9, 10}
	number := uint64(11)
	l.ten.pointer = &number
	l.none = Frame{Fn: none, Args: Size(unsafe.Sizeof(l.none))}
	Run(&l.one.Frame)
	assert.Equal(t, []uintptr{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 0}, order)
	assert.Equal(t, []uintptr{11, 12, 13}, []uintptr{l.one.Result, l.ten.Result, l.none.Result})
	assert.Equal(t, uint64(99), number)
}

func TestRunTurnsWhereACallFails(t *testing.T) {
	var order []uintptr
	say := purego.NewCallback(func(a, result uintptr) uintptr { order = append(order, a); return result })
	type frame struct {
		Frame
		a, result uintptr
	}
	frames := make([]frame, 4)
	for i := range frames {
		frames[i] = frame{Frame{Fn: say, Args: 2}, uintptr(i), 0}
		if i > 0 {
			frames[i-1].Next = &frames[i].Frame
		}
	}
	run := func() []uintptr {
		order = nil
		Run(&frames[0].Frame)
		return order
	}
	frames[1].Fail = &frames[3].Frame
	require.Equal(t, []uintptr{0, 1, 2, 3}, run())
	frames[1].result = 7
	require.Equal(t, []uintptr{0, 1, 3}, run())
	require.Equal(t, uintptr(7), frames[1].Result)
	frames[1].result = 7 << 32 // a function that returns 32 bits leaves anything above
	require.Equal(t, []uintptr{0, 1, 2, 3}, run())
	frames[0].Fail, frames[0].result = End, 1
	require.Equal(t, []uintptr{0}, run())
	frames[0].Fail = nil
	require.Equal(t, []uintptr{0, 1, 2, 3}, run())
}

// A callback grows the stack of the goroutine that called C, which moves it, and collects garbage. What C has pointers
// to stays where it is.
func TestCallbackMovesTheStack(t *testing.T) {
	var deep func(n int) int
	deep = func(n int) int {
		var room [512]byte
		room[n%len(room)] = 1
		if n == 0 {
			runtime.GC()
			return int(room[0])
		}
		return deep(n-1) + int(room[n%len(room)])
	}
	fn := purego.NewCallback(func(out, chained *uint64) uintptr {
		runtime.GC()
		depth := deep(2000)
		*out, *chained = uint64(depth), 5
		return uintptr(depth)
	})
	done := make(chan [3]uint64)
	go func() { // on a small stack
		var out, chained uint64
		r := Call(fn, uintptr(unsafe.Pointer(&out)), uintptr(unsafe.Pointer(&chained)))
		done <- [3]uint64{uint64(r), out, chained}
	}()
	require.Equal(t, [3]uint64{2001, 2001, 5}, <-done)
}

func TestCallsAllocateNothing(t *testing.T) {
	none := libraryFunction(t)
	l := new(list)
	l.none = Frame{Fn: none}
	assert.Zero(t, testing.AllocsPerRun(100, func() { Run(&l.none) }))
	assert.Zero(t, testing.AllocsPerRun(100, func() { Call(none) }))
}

func BenchmarkRun(b *testing.B) {
	l := new(list)
	l.none = Frame{Fn: libraryFunction(b)}
	for b.Loop() {
		Run(&l.none)
	}
}

func BenchmarkCall(b *testing.B) {
	fn := libraryFunction(b)
	for b.Loop() {
		Call(fn)
	}
}
