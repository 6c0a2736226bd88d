package attention_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/testdevice"
	"vkattn/vk"
)

// startup holds the times of a process, in milliseconds, from opening the device to the
// first result in host memory. It does not include the time before main, which
// GODEBUG=inittrace=1 shows.
type startup struct {
	Device  string
	Plan    string
	Open    float64 // vk.Open, the pipeline cache read
	New     float64 // attention.New
	Tensors float64 // a stream, buffers, uploads of the inputs
	Forward float64 // Op.Forward: plan, pipeline, recording
	Compile float64 // the part of Forward that the driver took for the pipeline
	Result  float64 // submitted, executed, downloaded
	Close   float64 // of everything, the pipeline cache written
}

// first returns the time from the open device to the result.
func (s *startup) first() float64 { return s.New + s.Tensors + s.Forward + s.Result }

// ours returns the part of first that is neither compiling nor executing.
func (s *startup) ours() float64 { return s.New + s.Tensors + s.Forward - s.Compile }

const startupEnv = "VKATTN_TEST_STARTUP"

// TestStartupChild is the process that BenchmarkStartup and TestWarmStart start.
func TestStartupChild(t *testing.T) {
	if os.Getenv(startupEnv) == "" {
		t.Skip("a process of BenchmarkStartup")
	}
	var s startup
	last := time.Now()
	lap := func(ms *float64) {
		now := time.Now()
		*ms = float64(now.Sub(last).Microseconds()) / 1e3
		last = now
	}
	dev, err := vk.Open(vk.Options{})
	require.NoError(t, err)
	lap(&s.Open)
	cfg := attention.Config{HeadDim: 128, Causal: attention.BottomRight}
	op, err := attention.New(attention.On(dev), cfg)
	require.NoError(t, err)
	lap(&s.New)
	stream, err := dev.NewStream("startup")
	require.NoError(t, err)
	shape := attention.Shape{B: 1, Hq: 2, Sq: 64, Sk: 64}
	host := make([]byte, 2*shape.Rows()*int64(cfg.HeadDim))
	for i := 1; i < len(host); i += 2 {
		host[i] = 0x3c // float16 1
	}
	var tensors [4]attention.Tensor
	for i := range tensors {
		tensors[i].Buffer, err = dev.NewBuffer(uint64(len(host)), vk.BufferOptions{})
		require.NoError(t, err)
		if i < 3 {
			require.NoError(t, stream.Upload(tensors[i].Buffer, 0, host))
		}
	}
	require.NoError(t, stream.Barrier())
	lap(&s.Tensors)
	args := attention.Args{Shape: shape, Q: tensors[0], K: tensors[1], V: tensors[2], O: tensors[3]}
	require.NoError(t, op.Forward(attention.OnStream(stream), args))
	lap(&s.Forward)
	require.NoError(t, stream.Barrier())
	got := make([]byte, len(host))
	require.NoError(t, stream.Download(context.Background(), got, args.O.Buffer, 0))
	lap(&s.Result)
	require.Equal(t, host, got, "a mean of ones")

	plan, err := op.PlanFor(args)
	require.NoError(t, err)
	s.Device, s.Plan = dev.Info().Name, fmt.Sprintf("%v %s", plan.Tier, plan.Tile)
	s.Compile = float64(attention.CompileTime(op).Microseconds()) / 1e3
	last = time.Now()
	require.NoError(t, dev.Close())
	lap(&s.Close)
	out, err := json.Marshal(s)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(os.Getenv(startupEnv), out, 0o644))
}

// caches are the folders of this library's pipeline cache and of the driver's own.
type caches struct{ ours, drivers string }

// start runs a process of its own against the caches.
func (c caches) start(t testing.TB) *startup {
	t.Helper()
	out := filepath.Join(t.TempDir(), "startup.json")
	program, err := filepath.Abs(os.Args[0])
	require.NoError(t, err)
	line := append(strings.Fields(os.Getenv("VKATTN_EXEC")), program, "-test.run=^TestStartupChild$", "-test.count=1")
	cmd := exec.Command(line[0], line[1:]...)
	cmd.Env = append(os.Environ(), "VKATTN_VALIDATION=", startupEnv+"="+out, vk.CacheDirEnv+"="+c.ours)
	for _, name := range []string{"MESA_SHADER_CACHE_DIR", "__GL_SHADER_DISK_CACHE_PATH"} {
		cmd.Env = append(cmd.Env, name+"="+c.drivers)
	}
	if c.drivers == "" {
		cmd.Env = append(cmd.Env, "MESA_SHADER_CACHE_DISABLE=true", "__GL_SHADER_DISK_CACHE=0")
	}
	text, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", text)
	file, err := os.ReadFile(out)
	require.NoError(t, err, "%s", text)
	s := &startup{}
	require.NoError(t, json.Unmarshal(file, s))
	return s
}

// needStartup skips the test if there is no device that executes.
func needStartup(t testing.TB) {
	t.Helper()
	driver := os.Getenv("VKATTN_DRIVER")
	if testdevice.Null() {
		t.Skip("a null device executes nothing")
	}
	if _, err := vk.Devices(); errors.Is(err, vk.ErrNoDevice) && (driver == "" || driver == "none") {
		t.Skip(err)
	}
}

// A process finds the pipelines of an earlier one in the cache: it has nothing to add to it.
func TestWarmStart(t *testing.T) {
	driver := os.Getenv("VKATTN_DRIVER")
	if driver != "native" && driver != "lavapipe" {
		t.Skip("one driver on the CPU, and GPUs")
	}
	c := caches{ours: t.TempDir(), drivers: t.TempDir()}
	pipelines := func() (string, os.FileInfo) {
		t.Logf("%+v", *c.start(t))
		files, err := filepath.Glob(filepath.Join(c.ours, "pipelines", "*.bin"))
		require.NoError(t, err)
		require.Len(t, files, 1, "the pipeline cache")
		info, err := os.Stat(files[0])
		require.NoError(t, err)
		data, err := os.ReadFile(files[0])
		require.NoError(t, err)
		return string(data), info
	}
	cold, coldFile := pipelines()
	warm, warmFile := pipelines()
	require.True(t, cold == warm && os.SameFile(coldFile, warmFile), "it was written again")
}

// BenchmarkStartup starts processes, each of which opens the device, runs one
// forward and ends. first-ms is from the open device to the result. -v prints
// every process.
func BenchmarkStartup(b *testing.B) {
	needStartup(b)
	for _, c := range []struct {
		name string
		warm bool
		caches
	}{
		{name: "cold"},
		{name: "warm", warm: true, caches: caches{ours: b.TempDir()}},
		{name: "warm-driver-too", warm: true, caches: caches{ours: b.TempDir(), drivers: b.TempDir()}},
	} {
		b.Run(c.name, func(b *testing.B) {
			if c.warm {
				c.start(b)
			}
			var sum startup
			for b.Loop() {
				s := c.start(b)
				b.Logf("%+v", *s)
				sum.Open += s.Open
				sum.New += s.New
				sum.Tensors += s.Tensors
				sum.Forward += s.Forward
				sum.Compile += s.Compile
				sum.Result += s.Result
				sum.Close += s.Close
			}
			n := float64(b.N)
			b.ReportMetric(sum.first()/n, "first-ms")
			b.ReportMetric(sum.ours()/n, "ours-ms")
			b.ReportMetric(sum.Compile/n, "compile-ms")
			b.ReportMetric(sum.Result/n, "result-ms")
			b.ReportMetric(sum.Open/n, "open-ms")
			b.ReportMetric(sum.Close/n, "close-ms")
		})
	}
}
