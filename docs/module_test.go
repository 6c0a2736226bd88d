package docs

import (
	"archive/zip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/internal/testlevel"
)

// A module whose path has no dot can be depended on by replace alone. A copy with another path builds,
// passes tests, and serves a program of another module through a module proxy. install.md tells how.
func TestModuleHasAnotherPath(t *testing.T) {
	testlevel.Long(t)
	testlevel.HostOnly(t)
	const path, version = "example.org/owner/vkattn", "v0.1.0"
	for _, tool := range []string{"go", "git", "make", "perl"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip(err)
		}
	}
	tracked, err := exec.Command("git", "-C", "..", "ls-files", "-coz", "--exclude-standard").Output()
	if err != nil {
		t.Skip("no clone: ", err)
	}
	files := strings.Split(strings.TrimSuffix(string(tracked), "\x00"), "\x00")
	dir := t.TempDir()
	for _, f := range files {
		b, err := os.ReadFile(filepath.Join("..", f))
		require.NoError(t, err)
		info, err := os.Stat(filepath.Join("..", f))
		require.NoError(t, err)
		to := filepath.Join(dir, f)
		require.NoError(t, os.MkdirAll(filepath.Dir(to), 0o755))
		require.NoError(t, os.WriteFile(to, b, info.Mode()))
	}
	run := func(dir string, env []string, name string, args ...string) string {
		c := exec.Command(name, args...)
		c.Dir, c.Env = dir, append(os.Environ(), append(env, "GOFLAGS=", "GOWORK=off", "GOSUMDB=off", "VKATTN_TEST_LEVEL=brief")...)
		out, err := c.CombinedOutput()
		require.NoError(t, err, "%s %s: %s", name, strings.Join(args, " "), out)
		return string(out)
	}
	run(dir, nil, "git", "init", "-q")
	run(dir, nil, "git", "add", "-A")
	run(dir, nil, "make", "-s", "module", "MODULE="+path)
	// Another path breaks imports, which are those of an existing package in every package and test, and paths in texts,
	// which tests and the build of the program below find. Compiling the rest would find nothing more.
	for line := range strings.Lines(run(dir, nil, "go", "list", "-deps", "-test", "-f", `{{range .Imports}}{{.}}{{"\n"}}{{end}}`, "./...")) {
		require.False(t, strings.HasPrefix(line, "vkattn/"), "%s is imported", line)
	}
	// Without cgo: compilers of C would take most of the time, and their sources import nothing of ours.
	run(dir, []string{"CGO_ENABLED=0"}, "go", "test", "./docs", "./attention/score", "./internal/oracle")

	proxy, program := t.TempDir(), t.TempDir()
	serve(t, dir, files, proxy, path, version)
	source, err := os.ReadFile(filepath.Join(dir, "attention/examples/quickstart/main.go"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(program, "main.go"), source, 0o644))
	cache, others, _ := strings.Cut(strings.TrimSpace(run(dir, nil, "go", "env", "GOMODCACHE", "GOPROXY")), "\n")
	env := []string{"CGO_ENABLED=0", "GOMODCACHE=" + t.TempDir(), "GOPROXY=file://" + proxy + ",file://" + cache + "/cache/download," + others}
	t.Cleanup(func() { run(program, env, "go", "clean", "-modcache") }) // its files are read-only
	run(program, env, "go", "mod", "init", "example.com/user")
	run(program, env, "go", "get", path+"@"+version)
	run(program, env, "go", "build", "-mod=mod", "-o", "user", ".")
}

// serve writes a version of a module as a proxy has it.
func serve(t *testing.T, dir string, files []string, proxy, path, version string) {
	t.Helper()
	at := filepath.Join(proxy, path, "@v")
	require.NoError(t, os.MkdirAll(at, 0o755))
	write := func(name string, b []byte) {
		require.NoError(t, os.WriteFile(filepath.Join(at, name), b, 0o644))
	}
	mod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	require.NoError(t, err)
	write("list", []byte(version+"\n"))
	write(version+".info", []byte(`{"Version":"`+version+`"}`))
	write(version+".mod", mod)
	archive, err := os.Create(filepath.Join(at, version+".zip"))
	require.NoError(t, err)
	z := zip.NewWriter(archive)
	for _, f := range files {
		if strings.HasPrefix(f, "docs/results/") {
			continue
		}
		b, err := os.ReadFile(filepath.Join(dir, f))
		require.NoError(t, err)
		w, err := z.Create(path + "@" + version + "/" + f)
		require.NoError(t, err)
		_, err = w.Write(b)
		require.NoError(t, err)
	}
	require.NoError(t, z.Close())
	require.NoError(t, archive.Close())
}
