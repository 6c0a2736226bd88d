package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// zeros is a float16 file of a shape.
func zeros(shape ...int) []byte {
	size := 2
	for _, n := range shape {
		size *= n
	}
	return npyBytes("<f2", false, shape, make([]byte, size))
}

// goodFiles are inputs of one small problem in a folder of their own.
func goodFiles(t *testing.T) (dir string, args []string) {
	dir = t.TempDir()
	for name, file := range map[string][]byte{"q": zeros(2, 4, 5, 8), "k": zeros(2, 2, 6, 8), "v": zeros(2, 2, 6, 3)} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name+".npy"), file, 0o644))
	}
	at := func(name string) string { return filepath.Join(dir, name+".npy") }
	return dir, []string{"run", "--device", "cpu", "--q", at("q"), "--k", at("k"), "--v", at("v"), "--o", at("o"), "--lse", at("lse")}
}

// with replaces a flag's value, or adds the flag.
func with(args []string, flag, value string) []string {
	out := slices.Clone(args)
	if i := slices.Index(out, flag); i >= 0 {
		out[i+1] = value
		return out
	}
	return append(out, flag, value)
}

// without takes a flag and its value away.
func without(args []string, flag string) []string {
	i := slices.Index(args, flag)
	return slices.Concat(args[:i], args[i+2:])
}

// nothingWritten checks that a folder holds the inputs alone.
func nothingWritten(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		require.Contains(t, []string{"q.npy", "k.npy", "v.npy"}, e.Name())
	}
}

func TestBadFilesAreBadInput(t *testing.T) {
	good := zeros(2, 2, 6, 8)
	for name, c := range map[string]struct {
		flag string
		file []byte
		want string
	}{
		"empty file":         {"q", nil, "not a .npy file"},
		"wrong magic":        {"k", []byte("GGUF plus some more bytes"), "not a .npy file"},
		"truncated":          {"k", good[:len(good)-1], "truncated"},
		"truncated header":   {"k", good[:20], "truncated"},
		"trailing garbage":   {"v", append(zeros(2, 2, 6, 3), 0), "1 bytes follow"},
		"size that lies":     {"k", npyBytes("<f2", false, []int{2, 2, 1 << 40, 8}, nil), "truncated"},
		"size that wraps":    {"k", npyBytes("<f2", false, []int{1 << 32, 1 << 32, 1 << 32, 8}, nil), "larger than any file"},
		"float64":            {"q", npyBytes("<f8", false, []int{2, 4, 5, 8}, make([]byte, 8*320)), "\"<f8\" is not supported: float16 ('<f2'), float32 ('<f4') or bfloat16 ('<V2') is needed"},
		"integers":           {"q", npyBytes("<i4", false, []int{2, 4, 5, 8}, make([]byte, 4*320)), "<i4"},
		"rank 3":             {"q", zeros(4, 5, 8), "q.npy: rank 3, want 4 (bhsd)"},
		"rank 5":             {"v", zeros(1, 2, 2, 6, 3), "v.npy: rank 5, want 4"},
		"rank 0":             {"k", zeros(), "k.npy: rank 0, want 4"},
		"empty axis":         {"q", zeros(2, 4, 0, 8), "q.npy: an axis is empty: [2 4 0 8]"},
		"batch of K":         {"k", zeros(1, 2, 6, 8), "K has batch 1"},
		"batch of V":         {"v", zeros(1, 2, 6, 3), "V has batch 1"},
		"heads of V":         {"v", zeros(2, 1, 6, 3), "V has 1 heads"},
		"heads not multiple": {"q", zeros(2, 5, 5, 8), "not a multiple"},
		"fewer query heads":  {"q", zeros(2, 1, 5, 8), "not a multiple"},
		"head dim of K":      {"k", zeros(2, 2, 6, 7), "K has head dim 7"},
		"length of V":        {"v", zeros(2, 2, 7, 3), "V has 7 rows"},
	} {
		t.Run(name, func(t *testing.T) {
			dir, args := goodFiles(t)
			require.NoError(t, os.WriteFile(filepath.Join(dir, c.flag+".npy"), c.file, 0o644))
			refused(t, exitInput, c.want, args...)
			nothingWritten(t, dir)
		})
	}
}

func TestBadFlagsAreBadInput(t *testing.T) {
	dir, args := goodFiles(t)
	for _, flag := range []string{"--q", "--k", "--v", "--o"} {
		refused(t, exitInput, flag+" is needed", without(args, flag)...)
		refused(t, exitInput, flag+" needs a file name", with(args, flag, "")...)
	}
	sub := filepath.Join(dir, "no", "such", "folder.npy")
	for _, c := range [][3]string{
		{"--q", sub, "no such file"},
		{"--k", dir, "not a regular file"},
		{"--o", sub, "no such file"},
		{"--o", dir, "not a regular file"},
		{"--o", "", "--o needs a file name"},
		{"--lse", sub, "no such file"},
		{"--lse", "", "--lse needs a file name"},
		{"--lse", filepath.Join(dir, "o.npy"), "the same file as --o"},
		{"--lse", filepath.Join(dir, ".", "..", filepath.Base(dir), "o.npy"), "the same file as --o"},
		{"--o", filepath.Join(dir, "q.npy"), "the same file as --q"},
		{"--lse", filepath.Join(dir, "v.npy"), "the same file as --v"},
		{"--layout", "hbsd", "unknown layout"},
		{"--dtype", "f8", "unknown dtype"},
		{"--causal", "yes", "unknown causal mask"},
		{"--tier", "tensor", "unknown tier"},
		{"--tuning", "maybe", "unknown tuning"},
		{"--timeout", "-1s", "--timeout -1s: want a positive duration"},
		{"--scale", "NaN", "finite number"},
		{"--scale", "inf", "finite number"},
		{"--scale", "1e39", "finite number"},
		{"--scale", "big", "finite number"},
		{"--scale", "", "finite number"},
		{"--json", "maybe", `unexpected argument "maybe": the value of --json is written --json=maybe`},
	} {
		t.Run(strings.Join(c[:2], " "), func(t *testing.T) {
			refused(t, exitInput, c[2], with(args, c[0], c[1])...)
			nothingWritten(t, dir)
		})
	}
}

func TestALinkToAnInputIsNoOutput(t *testing.T) {
	dir, args := goodFiles(t)
	link := filepath.Join(t.TempDir(), "link.npy")
	require.NoError(t, os.Symlink(filepath.Join(dir, "k.npy"), link))
	refused(t, exitInput, "the same file as --k", with(args, "--o", link)...)
}

func TestAFolderThatTakesNoFilesIsKnownBeforehand(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root writes everywhere")
	}
	_, args := goodFiles(t)
	closed := t.TempDir()
	require.NoError(t, os.Chmod(closed, 0o500))
	refused(t, exitInput, "permission denied", with(args, "--o", filepath.Join(closed, "o.npy"))...)
}

func TestRequestsNothingSupports(t *testing.T) {
	dir, args := goodFiles(t)
	refused(t, exitUnsupported, "tier scalar does not run on --device cpu", with(args, "--tier", "scalar")...)
	refused(t, exitUnsupported, "tier cuda", with(args, "--tier", "cuda")...)
	refused(t, exitUnsupported, "does not run on a Vulkan device", with(with(args, "--tier", "cpu"), "--device", "0")...)
	nothingWritten(t, dir)
	for name, file := range map[string][]byte{"q": zeros(1, 1, 1, 300), "k": zeros(1, 1, 1, 300), "v": zeros(1, 1, 1, 300)} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name+".npy"), file, 0o644))
	}
	refused(t, exitUnsupported, "256", args...)
	nothingWritten(t, dir)
}

func TestAMachineWithoutVulkan(t *testing.T) {
	if os.Getenv("VKATTN_DRIVER") != "none" {
		t.Skip("needs a machine without Vulkan (VKATTN_DRIVER=none)")
	}
	dir, args := goodFiles(t)
	refused(t, exitUnsupported, "needs a Vulkan device", with(with(args, "--tier", "scalar"), "--device", "auto")...)
	refused(t, exitUnsupported, "--device 0", with(args, "--device", "0")...)
	nothingWritten(t, dir)
	stdout, stderr := succeeds(t, with(args, "--device", "auto")...)
	require.Contains(t, stdout, "tier cpu")
	require.Contains(t, stderr, "computing on the CPU")
}

func TestADeviceNobodyHas(t *testing.T) {
	driver(t)
	dir, args := goodFiles(t)
	refused(t, exitInput, "--device no such device", with(args, "--device", "no such device")...)
	refused(t, exitInput, "--device 99", with(args, "--device", "99")...)
	nothingWritten(t, dir)
}
