// Package hostmem reports how much memory this process can still allocate, so that a
// request that does not fit is refused before anything is allocated. Linux overcommits: an
// allocation that is too large succeeds, and the kernel kills the process when it touches
// the pages.
//
// Available memory is the least of
//
//   - MemAvailable of /proc/meminfo, and under vm.overcommit_memory=2 what is left
//     of the commit limit;
//   - the limit of the process's memory cgroup and of each of its parents, version
//     1 or 2, less what the group uses and cannot give back;
//   - RLIMIT_AS and RLIMIT_DATA, less what the process has mapped.
//
// A sixteenth of it, at most 64 MiB, is reserved for the Go runtime. The environment
// variable VKATTN_HOST_MEMORY, a number of bytes with an optional suffix KiB, MiB, GiB or
// TiB, replaces all of these.
package hostmem

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"math/bits"
	"os"
	"path"
	"runtime/debug"
	"strconv"
	"strings"
)

// Variable is the environment variable that replaces the limits of the system.
const Variable = "VKATTN_HOST_MEMORY"

// Limit is the number of bytes that can be allocated, with the name of what limits it.
type Limit struct {
	Bytes uint64
	By    string // such as "MemAvailable" or "RLIMIT_AS"
}

// Unlimited is the Limit if the system does not tell one.
var Unlimited = Limit{Bytes: math.MaxUint64, By: "unknown"}

// ErrOutOfMemory is vk.ErrOutOfMemory, which every *Error matches.
var ErrOutOfMemory = errors.New("vk: out of memory")

// Error is the error of a request for more memory than is available.
type Error struct {
	Needed uint64
	Limit
}

// Is reports whether target is ErrOutOfMemory.
func (e *Error) Is(target error) bool { return target == ErrOutOfMemory }

// Error names both sizes.
func (e *Error) Error() string {
	return fmt.Sprintf("%s (%s)", Shortage("host memory", e.Needed, e.Bytes), e.By)
}

// Check returns an *Error if needed bytes are not available. Before it does so it collects
// garbage and returns the memory to the system.
func Check(needed uint64) error {
	limit := Available()
	if needed <= limit.Bytes {
		return nil
	}
	if os.Getenv(Variable) == "" && limit.Bytes < math.MaxUint64 {
		if needed <= machine().total() { // otherwise collecting garbage cannot help
			debug.FreeOSMemory()
			limit = Available()
		}
		if needed <= limit.Bytes {
			return nil
		}
	}
	return &Error{needed, limit}
}

// CheckVariable returns an error if the value of the environment variable is not a size.
// Available ignores such a value.
func CheckVariable() error {
	if text := os.Getenv(Variable); text != "" {
		if _, err := parse(text); err != nil {
			return fmt.Errorf("%s is %q, want bytes, such as 8GiB", Variable, text)
		}
	}
	return nil
}

// Available reports the Limit of this process as it is now.
func Available() Limit {
	if text := os.Getenv(Variable); text != "" {
		if n, err := parse(text); err == nil {
			return Limit{n, Variable}
		}
	}
	return machine().available()
}

// LimitHeap sets the memory limit of the garbage collector to what is available now, unless
// GOMEMLIMIT is set. Without a limit garbage may take as much memory as what is in use, so
// that a request that Check accepts would not fit.
func LimitHeap() {
	if os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	if limit := machine().available(); limit.Bytes < math.MaxInt64 {
		debug.SetMemoryLimit(int64(limit.Bytes))
	}
}

// parse parses a number of bytes with an optional binary unit.
func parse(text string) (uint64, error) {
	shift := 0
	for i, unit := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if rest, ok := strings.CutSuffix(text, unit); ok {
			text, shift = rest, 10*(i+1)
		}
	}
	n, err := strconv.ParseUint(strings.TrimSpace(text), 10, 64)
	if err == nil && n > math.MaxUint64>>shift {
		err = strconv.ErrRange
	}
	return n << shift, err
}

// system is the source of the limits, which tests replace.
type system struct {
	files  fs.FS
	rlimit func() (addressSpace, data uint64) // MaxUint64: none
}

func machine() system { return system{os.DirFS("/"), rlimits} }

// available is the least of the limits, less the runtime's share.
func (s system) available() Limit {
	least := Unlimited
	add := func(bytes uint64, by string) {
		if bytes < least.Bytes {
			least = Limit{bytes, by}
		}
	}
	info := s.table("proc/meminfo", ":")
	if kb, ok := info["MemAvailable"]; ok {
		add(kb<<10, "MemAvailable")
	}
	if mode, _ := s.number("proc/sys/vm/overcommit_memory"); mode == 2 {
		if limit, ok := info["CommitLimit"]; ok {
			add(minus(limit, info["Committed_AS"])<<10, "CommitLimit")
		}
	}
	for _, g := range s.groups() {
		add(g.left(s))
	}
	status := s.table("proc/self/status", ":")
	space, data := s.rlimit()
	if space < math.MaxUint64 {
		add(minus(space, status["VmSize"]<<10), "RLIMIT_AS")
	}
	if data < math.MaxUint64 {
		add(minus(data, status["VmData"]<<10), "RLIMIT_DATA")
	}
	if least.Bytes < math.MaxUint64 {
		least.Bytes -= min(least.Bytes/16, 64<<20)
	}
	return least
}

// total is the memory of the machine.
func (s system) total() uint64 { return s.table("proc/meminfo", ":")["MemTotal"] << 10 }

// group is the folder of one memory cgroup.
type group struct {
	dir string
	v2  bool
}

// groups are the memory cgroups of the process, from its own up to the root of
// each mounted hierarchy.
func (s system) groups() (list []group) {
	own := map[bool]string{} // by whether it is version 2
	for _, line := range s.lines("proc/self/cgroup") {
		// 4:memory:/path, or 0::/path for version 2
		f := strings.SplitN(line, ":", 3)
		switch {
		case len(f) != 3:
		case f[0] == "0" && f[1] == "":
			own[true] = f[2]
		case contains(f[1], "memory"):
			own[false] = f[2]
		}
	}
	for _, line := range s.lines("proc/self/mountinfo") {
		// ID parent major:minor root mount-point options fields - type source options
		before, after, ok := strings.Cut(line, " - ")
		f, g := strings.Fields(before), strings.Fields(after)
		if !ok || len(f) < 5 || len(g) < 3 {
			continue
		}
		v2 := g[0] == "cgroup2"
		at, known := own[v2]
		if !known || !v2 && (g[0] != "cgroup" || !contains(g[2], "memory")) {
			continue
		}
		// The mount shows the hierarchy from its root on.
		root, point := path.Clean(unescape(f[3])), strings.TrimPrefix(path.Clean(unescape(f[4])), "/")
		below := path.Clean("/" + strings.TrimPrefix(at, root))
		if root != "/" && at != root && !strings.HasPrefix(at, root+"/") {
			below = "/" // outside of what is mounted here: the root of the mount holds it
		}
		for ; ; below = path.Dir(below) {
			list = append(list, group{strings.TrimSuffix(point+below, "/"), v2})
			if below == "/" {
				break
			}
		}
	}
	return list
}

// left is the number of bytes left of a group's limit. Inactive file pages do not count as
// used: the kernel drops them first.
func (g group) left(s system) (uint64, string) {
	limits, usage, cache := []string{"memory.limit_in_bytes"}, "memory.usage_in_bytes", "total_inactive_file"
	if g.v2 {
		// Above memory.high the kernel slows a process down until it barely runs.
		limits, usage, cache = []string{"memory.max", "memory.high"}, "memory.current", "inactive_file"
	}
	left, by := uint64(math.MaxUint64), ""
	for _, name := range limits {
		limit, ok := s.number(path.Join(g.dir, name))
		if !ok || limit >= math.MaxInt64>>12<<12 { // "max", or what version 1 has for it
			continue
		}
		used, _ := s.number(path.Join(g.dir, usage))
		used = minus(used, s.table(path.Join(g.dir, "memory.stat"), " ")[cache])
		if n := minus(limit, used); n < left {
			left, by = n, "cgroup "+name
		}
	}
	return left, by
}

// lines returns the lines of a file, none if it cannot be read.
func (s system) lines(name string) []string {
	b, err := fs.ReadFile(s.files, name)
	if err != nil {
		return nil
	}
	return strings.Split(strings.TrimSpace(string(b)), "\n")
}

// table parses lines of a name, a separator and a number.
func (s system) table(name, separator string) map[string]uint64 {
	out := map[string]uint64{}
	for _, line := range s.lines(name) {
		key, value, _ := strings.Cut(line, separator)
		if f := strings.Fields(value); len(f) > 0 {
			if n, err := strconv.ParseUint(f[0], 10, 64); err == nil && n <= math.MaxUint64>>10 {
				out[key] = n
			}
		}
	}
	return out
}

func (s system) number(name string) (uint64, bool) {
	lines := s.lines(name)
	if len(lines) == 0 {
		return 0, false
	}
	n, err := strconv.ParseUint(strings.TrimSpace(lines[0]), 10, 64)
	return n, err == nil
}

func minus(a, b uint64) uint64 { return a - min(a, b) }

func contains(list, name string) bool {
	for _, x := range strings.Split(list, ",") {
		if x == name {
			return true
		}
	}
	return false
}

// unescape reads the octal escapes of mountinfo.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// Product multiplies sizes. It returns MaxUint64, which no check accepts, if the product
// overflows, and 0 if a factor is not positive.
func Product[T int | int64 | uint64](sizes ...T) uint64 {
	p := uint64(1)
	for _, n := range sizes {
		if n <= 0 {
			return 0
		}
	}
	for _, n := range sizes {
		high, low := bits.Mul64(p, uint64(n))
		if high != 0 {
			return math.MaxUint64
		}
		p = low
	}
	return p
}

// Sum adds sizes. It returns MaxUint64 if the sum overflows.
func Sum(sizes ...uint64) uint64 {
	s := uint64(0)
	for _, n := range sizes {
		if n > math.MaxUint64-s {
			return math.MaxUint64
		}
		s += n
	}
	return s
}

// Bytes prints a size with its binary unit. For a saturated size it prints the largest there is.
func Bytes(n uint64) string {
	const units = "KMGTPE"
	switch {
	case n == math.MaxUint64:
		return "over 16 EiB"
	case n < 1024:
		return fmt.Sprintf("%d B", n)
	}
	v := float64(n)
	at := -1
	for v >= 1024 && at < len(units)-1 {
		v /= 1024
		at++
	}
	if v < 10 {
		return fmt.Sprintf("%.1f %ciB", v, units[at])
	}
	return fmt.Sprintf("%.0f %ciB", v, units[at])
}

// Shortage says that more memory of a kind is needed than is available. Two sizes that print alike are told
// by their difference.
func Shortage(kind string, needed, available uint64) string {
	need, have := Bytes(needed), Bytes(available)
	if need == have && needed > available {
		return fmt.Sprintf("needs %s of %s, %s more than are available", need, kind, Bytes(needed-available))
	}
	return fmt.Sprintf("needs %s of %s, %s are available", need, kind, have)
}
