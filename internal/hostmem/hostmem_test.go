package hostmem

import (
	"errors"
	"math"
	"runtime/debug"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

// fake is a system of files with some contents.
func fake(space, data uint64, files map[string]string) system {
	tree := fstest.MapFS{}
	for name, text := range files {
		tree[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return system{tree, func() (uint64, uint64) { return space, data }}
}

const none = math.MaxUint64

func TestAvailableIsTheLeastLimit(t *testing.T) {
	const (
		meminfo = "MemTotal: 8192 kB\nMemFree: 100 kB\nMemAvailable:    4096 kB\nCommitLimit: 3072 kB\nCommitted_AS: 1024 kB\n"
		status  = "Name:\tvkattn\nVmSize:\t  1024 kB\nVmData:\t   512 kB\n"
		v2mount = "31 23 0:28 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n"
	)
	for name, c := range map[string]struct {
		space, data uint64
		files       map[string]string
		want        uint64 // before the runtime's share
		by          string
	}{
		"nothing is known": {none, none, nil, none, "unknown"},
		"meminfo":          {none, none, map[string]string{"proc/meminfo": meminfo}, 4 << 20, "MemAvailable"},
		"strict overcommit": {none, none, map[string]string{"proc/meminfo": meminfo, "proc/sys/vm/overcommit_memory": "2\n"},
			2 << 20, "CommitLimit"},
		"heuristic overcommit": {none, none, map[string]string{"proc/meminfo": meminfo, "proc/sys/vm/overcommit_memory": "0\n"},
			4 << 20, "MemAvailable"},
		"address space": {3 << 20, none, map[string]string{"proc/meminfo": meminfo, "proc/self/status": status}, 2 << 20, "RLIMIT_AS"},
		"data":          {none, 1 << 20, map[string]string{"proc/meminfo": meminfo, "proc/self/status": status}, 1 << 19, "RLIMIT_DATA"},
		"over a limit":  {1 << 19, none, map[string]string{"proc/meminfo": meminfo, "proc/self/status": status}, 0, "RLIMIT_AS"},
		"cgroup 2": {none, none, map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "0::/\n", "proc/self/mountinfo": v2mount,
			"sys/fs/cgroup/memory.max": "2097152\n", "sys/fs/cgroup/memory.current": "1048576\n", "sys/fs/cgroup/memory.high": "max\n",
			"sys/fs/cgroup/memory.stat": "anon 5\ninactive_file 524288\n"}, 3 << 19, "cgroup memory.max"},
		"cgroup 2 slows down": {none, none, map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "0::/\n", "proc/self/mountinfo": v2mount,
			"sys/fs/cgroup/memory.max": "2097152\n", "sys/fs/cgroup/memory.current": "0\n", "sys/fs/cgroup/memory.high": "1048576\n"},
			1 << 20, "cgroup memory.high"},
		"cgroup 2, a parent's limit": {none, none, map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "0::/user/me\n", "proc/self/mountinfo": v2mount,
			"sys/fs/cgroup/user/me/memory.max": "max\n", "sys/fs/cgroup/user/memory.max": "1048576\n", "sys/fs/cgroup/user/memory.current": "524288\n"},
			1 << 19, "cgroup memory.max"},
		"cgroup 1": {none, none, map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "9:name=systemd:/\n4:cpu,memory:/a\n",
			"proc/self/mountinfo":                           "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,cpu,memory\n36 31 0:33 / /sys/fs/cgroup/devices rw - cgroup cgroup rw,devices\n",
			"sys/fs/cgroup/memory/a/memory.limit_in_bytes":  "2097152\n",
			"sys/fs/cgroup/memory/a/memory.usage_in_bytes":  "1572864\n",
			"sys/fs/cgroup/memory/a/memory.stat":            "inactive_file 1\ntotal_inactive_file 524288\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes":    "9223372036854771712\n",
			"sys/fs/cgroup/devices/a/memory.limit_in_bytes": "1\n"}, 1 << 20, "cgroup memory.limit_in_bytes"},
		"cgroup 1 of a container without a namespace": {none, none, map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "4:memory:/docker/abc\n",
			"proc/self/mountinfo":                        "35 31 0:32 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "1048576\n", "sys/fs/cgroup/memory/memory.usage_in_bytes": "0\n"}, 1 << 20, "cgroup memory.limit_in_bytes"},
		"a mount that does not show the group": {none, none, map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "4:memory:/other\n",
			"proc/self/mountinfo":                        "35 31 0:32 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "1048576\n"}, 1 << 20, "cgroup memory.limit_in_bytes"},
		"files of another kind": {none, none, map[string]string{"proc/meminfo": "MemAvailable: many kB\n", "proc/self/cgroup": "x\n::\n0::/../..\n",
			"proc/self/mountinfo": "- cgroup2\n1 2 3 / /sys/fs/cgroup rw - cgroup2 a b\n", "sys/fs/cgroup/memory.max": "-1\n"}, none, "unknown"},
	} {
		t.Run(name, func(t *testing.T) {
			got := fake(c.space, c.data, c.files).available()
			want := c.want
			if want < none {
				want -= min(want/16, 64<<20)
			}
			require.Equal(t, Limit{want, c.by}, got)
		})
	}
}

func TestThisMachineHasALimit(t *testing.T) {
	limit := Available()
	require.NotZero(t, limit.Bytes)
	require.Less(t, limit.Bytes, uint64(math.MaxUint64), "neither /proc nor a limit is there")
}

func TestCheckRefusesWhatDoesNotFit(t *testing.T) {
	require.NoError(t, Check(0))
	require.NoError(t, Check(1<<10))
	var e *Error
	require.True(t, errors.As(Check(math.MaxUint64), &e))
	require.ErrorIs(t, e, ErrOutOfMemory)
	require.Contains(t, e.Error(), "needs over 16 EiB of host memory, ")

	t.Setenv(Variable, "1MiB")
	require.NoError(t, Check(1<<20))
	require.EqualError(t, Check(1<<20+1), "needs 1.0 MiB of host memory, 1 B more than are available (VKATTN_HOST_MEMORY)")
	require.EqualError(t, Check(385<<30), "needs 385 GiB of host memory, 1.0 MiB are available (VKATTN_HOST_MEMORY)")
}

func TestTheVariableTakesUnits(t *testing.T) {
	for text, want := range map[string]uint64{"0": 0, "17": 17, "3KiB": 3 << 10, "2 GiB": 2 << 30, "1TiB": 1 << 40} {
		got, err := parse(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
	for _, text := range []string{"", "x", "-1", "1.5GiB", "99999999999TiB", "5GB"} {
		_, err := parse(text)
		require.Error(t, err, text)
	}
	t.Setenv(Variable, "lots")
	require.NotEqual(t, Variable, Available().By, "a value that is no number is no limit")
}

func TestTheHeapIsLimited(t *testing.T) {
	before := debug.SetMemoryLimit(-1)
	t.Cleanup(func() { debug.SetMemoryLimit(before) })
	t.Setenv("GOMEMLIMIT", "1GiB")
	LimitHeap()
	require.Equal(t, before, debug.SetMemoryLimit(-1), "the user's word")
	t.Setenv("GOMEMLIMIT", "")
	LimitHeap()
	require.Less(t, debug.SetMemoryLimit(-1), int64(math.MaxInt64))
	require.Greater(t, debug.SetMemoryLimit(-1), int64(1<<20))
}

func TestSizesSaturate(t *testing.T) {
	require.EqualValues(t, 24, Product(2, 3, 4))
	require.EqualValues(t, 0, Product(2, 0, math.MaxInt))
	require.EqualValues(t, 0, Product(2, -3))
	require.EqualValues(t, uint64(math.MaxUint64), Product(math.MaxInt, math.MaxInt, 1))
	require.EqualValues(t, uint64(math.MaxUint64), Product[uint64](math.MaxUint64, 2))
	require.EqualValues(t, uint64(math.MaxUint64), Product(1<<40, 1<<20, 1<<10))
	require.EqualValues(t, 6, Sum(1, 2, 3))
	require.EqualValues(t, uint64(math.MaxUint64), Sum(math.MaxUint64, 1))
	require.EqualValues(t, uint64(math.MaxUint64), Sum(math.MaxUint64, 0))
}

func TestBytes(t *testing.T) {
	for n, want := range map[uint64]string{0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 10 << 20: "10 MiB", 1536 << 20: "1.5 GiB", 1 << 60: "1.0 EiB"} {
		require.Equal(t, want, Bytes(n))
	}
}
