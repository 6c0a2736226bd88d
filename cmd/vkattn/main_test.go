package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/flagtext"
	"vkattn/internal/faultydriver"
	"vkattn/internal/testdevice"
	"vkattn/vk"
)

// endLimit is for a process that does not do what it should; ending it fails the test.
const endLimit = 10 * time.Minute

// command is this program as a process of its own, as TestMain makes it.
func command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	if d := os.Getenv("VKATTN_DRIVER"); d != "" && d != "none" {
		t.Skip("os.Executable is not the test under another loader")
	}
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(self, args...)
	cmd.Env = append(os.Environ(), "VKATTN_TEST_IS_COMMAND=1")
	return cmd
}

var endingSignals = []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP}

// TestMain lets a test start the command itself: the test binary is vkattn when asked to
// be. VKATTN_TEST_LINGER names a file to make when the command has ended; the process then lives
// until the end of its input. VKATTN_TEST_GRACE is grace.
func TestMain(m *testing.M) {
	if os.Getenv("VKATTN_TEST_IS_COMMAND") != "" {
		if err := faultydriver.Install(); err != nil {
			panic(err)
		}
		flushTime = endLimit
		if d, err := time.ParseDuration(os.Getenv("VKATTN_TEST_GRACE")); err == nil {
			grace = d
		}
		code, _ := runUntilExit(os.Args[1:], os.Stdout, os.Stderr)
		if path := os.Getenv("VKATTN_TEST_LINGER"); path != "" {
			_ = os.WriteFile(path, nil, 0o600)
			_, _ = io.Copy(io.Discard, os.Stdin)
		}
		os.Exit(code)
	}
	// Under nohup, and in the background of a script, children would ignore a signal too; one
	// that is caught is theirs to decide.
	for _, s := range endingSignals {
		if signal.Ignored(s) {
			signal.Notify(make(chan os.Signal, 1), s)
		}
	}
	os.Exit(m.Run())
}

// call runs the command in this process.
func call(args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = runMain(args, &out, &errs)
	return code, out.String(), errs.String()
}

// succeeds is call for arguments that are good.
func succeeds(t *testing.T, args ...string) (stdout, stderr string) {
	t.Helper()
	code, stdout, stderr := call(args...)
	require.Equal(t, exitOK, code, "%v: %s", args, stderr)
	return stdout, stderr
}

// decoded is the value of a text in JSON.
func decoded[T any](t *testing.T, text string) (value T) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(text), &value), text)
	return value
}

// documentRows are the rows of a document in JSON.
func documentRows[R any](t *testing.T, text string) []R {
	t.Helper()
	return decoded[struct{ Rows []R }](t, text).Rows
}

// rowsOf are the rows of a text in JSON lines.
func rowsOf[R any, T string | []byte](t *testing.T, text T) (rows []R) {
	t.Helper()
	for line := range strings.Lines(string(text)) {
		rows = append(rows, decoded[R](t, line))
	}
	return rows
}

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	return data
}

// refused checks the promise of a failure: its code, and one line that begins
// with the command's name and says want.
func refused(t *testing.T, code int, want string, args ...string) {
	t.Helper()
	got, stdout, stderr := call(args...)
	require.Equal(t, code, got, "%v: %s", args, stderr)
	require.Empty(t, stdout)
	require.Equal(t, 1, strings.Count(stderr, "\n"), stderr)
	require.True(t, strings.HasPrefix(stderr, "vkattn: "), stderr)
	require.Contains(t, stderr, want)
	noIdentifiers(t, stderr)
}

// A user of the command knows flags and files, not the fields of Go structs.
var (
	identifiers = regexp.MustCompile(`\b(?:[A-Z]+[a-z]+[A-Z]\w*|[A-Z]{2,}[a-z]{2,}\w*|\w+\.[A-Z]\w+|` +
		`Align|Softcap|Dropout|Causal|Window|Blocks|Pages|Varlen|Bias|Mask|Sinks|Tier|Tuning|Kernel|Access|Scale|Shape|Config|Args|SparseTokens|Experiment|Ablate)\b`)
	notIdentifiers = regexp.MustCompile(`\b(?:[KMGTPE]iB|NaN|ALiBi|MemAvailable|SwiftShader|libEGL\S*)\b`)
)

func noIdentifiers(t *testing.T, text string) {
	t.Helper()
	var words []string // paths are the user's own
	for _, w := range strings.Fields(text) {
		if !strings.Contains(w, "/") {
			words = append(words, w)
		}
	}
	text = notIdentifiers.ReplaceAllString(strings.Join(words, " "), "")
	require.Empty(t, identifiers.FindAllString(text, -1), text)
}

// driver is the Vulkan driver under test, or a skip. Null devices compile and do
// not compute.
func driver(t *testing.T) string {
	name := os.Getenv("VKATTN_DRIVER")
	switch {
	case name == "", name == "none":
		t.Skip("no Vulkan driver under test (VKATTN_DRIVER)")
	case testdevice.Null():
		t.Skip("a null device computes nothing")
	}
	return name
}

// onceOnly skips what takes long and is the same on every driver, as no device is used:
// it runs where no driver is under test.
func onceOnly(t *testing.T) {
	if name := os.Getenv("VKATTN_DRIVER"); name != "" && name != "none" {
		t.Skip("the same without a Vulkan driver")
	}
}

// quickDriver is driver but for drivers of the CPU that take long to compile what the
// newest one does as well: a command's own code is the same on all of them.
func quickDriver(t *testing.T) string {
	name := driver(t)
	if name == "swiftshader" || name == "lavapipe-old" {
		t.Skip("takes long to compile here; lavapipe runs it")
	}
	return name
}

func TestUnknownWordsAndFlagsAreBadInput(t *testing.T) {
	refused(t, exitInput, `unknown command "fly"`, "fly")
	refused(t, exitInput, `unknown command "fly"`, "help", "fly")
	refused(t, exitInput, `unknown command "benhc" for "vkattn", did you mean bench?`, "help", "benhc")
	refused(t, exitInput, `unknown command "fly"`, "completion", "fly")
	refused(t, exitInput, "unknown flag: --wings", "--wings")
	refused(t, exitInput, "unknown flag: --wings", "info", "--wings")
	for _, c := range []string{"info", "run", "bench", "verify", "tune", "version"} {
		refused(t, exitInput, `unexpected argument "extra"`, c, "extra")
	}
}

// A value that a flag cannot have is refused in one form: the flag, the value and what is wanted.
func TestValuesThatAFlagCannotHave(t *testing.T) {
	for says, args := range map[string][]string{
		`--columns "abc": want a whole number`:                       {"report", "x", "--columns", "abc"},
		`--peak-tflops "abc": want a number`:                         {"report", "x", "--peak-tflops", "abc"},
		`--peak-tflops "1e400": value out of range`:                  {"report", "x", "--peak-tflops", "1e400"},
		`--min-time "-1": want a duration, such as 2s`:               {"bench", "--min-time", "-1"},
		`--seed "-1": want a whole number from 0 on`:                 {"bench", "--seed", "-1"},
		`--ratios "x": want true or false`:                           {"report", "x", "--ratios=x"},
		`--max-noise: "0" is not a percentage above 0 and below 100`: {"bench", "--max-noise", "0"},
		`--kv-layout: unknown layout "abc", want nhd or hnd`:         {"bench", "--kv-layout", "abc"},
		`--softcap "0": want a finite number above 0`:                {"run", "--softcap", "0"},
		`--batch-size: "0" is not a positive number`:                 {"bench", "--batch-size", "0"},
		`--seqlen: "-1" is not a positive number`:                    {"bench", "--seqlen", "-1"},
		`--nheads: "8-x*2": "x" is not a positive number`:            {"bench", "--nheads", "8-x*2"},
		"--baseline needs a file name":                               {"bench", "--baseline", ""},
		"--monitor needs a file name":                                {"bench", "--monitor", ""},
		"--trace needs a file name":                                  {"profile", "--trace", ""},
		"--save needs a file name":                                   {"verify", "--save", ""},
		"--plot needs a file name":                                   {"report", "x", "--plot", ""},
		"unknown shorthand flag: '1' in -1":                          {"run", "--json", "-1"},
	} {
		refused(t, exitInput, "vkattn: "+says, args...)
	}
	_, _, stderr := call("run", "--json", "-1")
	require.NotContains(t, stderr, "did you mean")
}

func TestHelpAndVersion(t *testing.T) {
	stdout, stderr := succeeds(t)
	require.Empty(t, stderr)
	for _, c := range []string{"info", "run", "bench", "compare", "verify", "tune", "profile", "report", "version"} {
		require.Contains(t, stdout, "\n  "+c)
		help, _ := succeeds(t, c, "--help")
		text, _, ok := strings.Cut(help, "Usage:")
		require.True(t, ok)
		for _, line := range strings.Split(text, "\n") {
			require.LessOrEqual(t, len(line), 95, "%s: %s", c, line) // the flags have lines of any length
		}
	}
	stdout, _ = succeeds(t, "version")
	require.Regexp(t, `^vkattn \S+ go\S+ \w+/\w+\n$`, stdout)
}

func TestInfoAlwaysNamesTheCPU(t *testing.T) {
	stdout, stderr := succeeds(t, "info")
	require.Empty(t, stderr)
	require.Contains(t, stdout, "\ncpu: ")
	stdout, _ = succeeds(t, "info", "--json")
	m := decoded[machine](t, stdout)
	require.Len(t, m.Tiers, 3)
	require.NotNil(t, m.Devices)
	if len(m.Devices) == 0 {
		require.NotEmpty(t, m.Vulkan, "no device, and no word why")
	}
	for _, d := range m.Devices {
		for _, s := range d.Tiers {
			require.NotEmpty(t, s.Reason, "%s %v %v", d.Name, s.Tier, s.DType)
		}
	}
}

func TestInfoListsTheDeviceUnderTest(t *testing.T) {
	driver(t)
	stdout, _ := succeeds(t, "info", "--json")
	m := decoded[machine](t, stdout)
	require.NotEmpty(t, m.Devices)
	require.Len(t, m.Devices[0].Tiers, 15, "five tiers for each of three types")
	cuda := m.Devices[0].CUDA
	require.NotEqual(t, cuda.Device == "", cuda.Missing == "", "CUDA is there, or something says what is missing")
	if cuda.Device != "" {
		require.Len(t, cuda.Kernels, 3*len(attention.CUDAKernels()))
	}
	_, text, _ := call("info")
	require.Contains(t, text, "CUDA: ")
}

func TestExitCodes(t *testing.T) {
	for _, c := range []struct {
		err  error
		code int
	}{
		{nil, exitOK},
		{errors.New("disk full"), exitFailure},
		{badInputf("no"), exitInput},
		{fmt.Errorf("wrapped: %w", badInputf("no")), exitInput},
		{&attention.ShapeError{Field: "Sq"}, exitInput},
		{attention.ErrUnsupported, exitUnsupported},
		{vk.ErrNoDevice, exitUnsupported},
		{unsupportedf("no: %w", &attention.ShapeError{Field: "HeadDim"}), exitUnsupported},
		{vk.ErrDeviceLost, exitDevice},
		{vk.ErrOutOfMemory, exitUnsupported},
		{badInputf("--q: %w", vk.ErrOutOfMemory), exitUnsupported},
		{&vk.Error{Op: "vkAllocateMemory", Result: -2}, exitUnsupported},
		{&vk.Error{Op: "vkQueueSubmit", Result: -4}, exitDevice},
		{fmt.Errorf("writing: %w", syscall.EPIPE), exitPipe},
		{&vk.Error{Op: "Pipeline", Err: vk.ErrUnsupported}, exitUnsupported},
	} {
		require.Equal(t, c.code, exitCode(c.err), "%v", c.err)
	}
}

func TestCleanupRunsOnceAndAtOnceWhenLate(t *testing.T) {
	var c cleanup
	var order []string
	note := func(what string) func() { return func() { order = append(order, what) } }
	c.add(note("first"))
	c.add(note("last"))
	c.run()
	c.run()
	require.Equal(t, []string{"last", "first"}, order)
	c.add(note("late"))
	require.Equal(t, []string{"last", "first", "late"}, order)
}

func TestOneLine(t *testing.T) {
	require.Equal(t, "a; b", flagtext.OneLine(" a\n\n b \n"))
	require.Equal(t, "--x: bad", flagtext.OneLine("--x: attention: bad"))
	require.Equal(t, "lost", flagtext.OneLine("vk: lost"))
	require.Equal(t, "rank 0: unsupported: NCCL needs a GPU", flagtext.OneLine("parallel: rank 0: unsupported: vk: unsupported: NCCL needs a GPU"))
	require.Equal(t, "rank 0 cannot listen", flagtext.OneLine("control: rank 0 cannot listen"))
}

// npyBytes is a .npy file; data may disagree with the header on purpose.
func npyBytes(descr string, fortran bool, shape []int, data []byte) []byte {
	order, axes := "False", ""
	if fortran {
		order = "True"
	}
	for _, n := range shape {
		axes += fmt.Sprintf("%d, ", n)
	}
	text := fmt.Sprintf("{'descr': '%s', 'fortran_order': %s, 'shape': (%s), }\n", descr, order, axes)
	out := append([]byte("\x93NUMPY\x01\x00"), binary.LittleEndian.AppendUint16(nil, uint16(len(text)))...)
	return append(append(out, text...), data...)
}

func runMain(args []string, stdout, stderr io.Writer) int {
	code, release := runUntilExit(args, stdout, stderr)
	release()
	return code
}
