package peer

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"vkattn/cmd/vkattn/internal/fields"
)

// patience is longer than any wait that ends.
const patience = 10 * time.Minute

// TestMain lets the test binary be the peer.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "be-peer" {
		os.Exit(fakePeer(os.Args[2]))
	}
	lastWords, endPatience = patience, patience
	os.Exit(m.Run())
}

// fakePeer answers as a good peer does, and misbehaves at one request: manner
// is "op:how", or good.
func fakePeer(manner string) int {
	at, how, _ := strings.Cut(manner, ":")
	if how == "hang" {
		fmt.Fprintln(os.Stderr, "thinking")
	}
	scan := bufio.NewScanner(os.Stdin)
	for scan.Scan() {
		var r struct {
			Op   string
			ID   int
			N    int
			UUID string
		}
		if json.Unmarshal(scan.Bytes(), &r) != nil {
			return 9
		}
		if r.Op == at {
			switch how {
			case "die":
				fmt.Fprint(os.Stderr, "Traceback\nboom: 42\n\n")
				return 3
			case "hang":
				fmt.Fprintln(os.Stderr, "thinking hard")
				time.Sleep(time.Hour)
			case "rubbish":
				fmt.Println("UserWarning: \x1b[1mnice\x1b[0m day")
			case "long":
				fmt.Println(strings.Repeat("x", 2<<20))
			case "old":
				fmt.Printf("{\"id\":%d}\n", r.ID-1)
			case "close":
				_ = os.Stdout.Close()
				time.Sleep(time.Hour)
			case "last":
				fmt.Printf("{\"id\":%d,\"ms\":[1]}\n", r.ID)
				return 0
			default:
				fmt.Printf("{\"id\":%d,%s}\n", r.ID, how)
			}
			continue
		}
		switch r.Op {
		case "hello":
			fmt.Printf("{\"id\":%d,\"name\":\"fake\",\"device\":\"a\\nGPU\",\"uuid\":\"GPU-00ff-AA\"}\n", r.ID)
		case "problem":
			fmt.Printf("{\"id\":%d,\"status\":\"ok\",\"memory_bytes\":5,\"checked\":{\"rows\":2,\"max_error\":0.5,\"nmse\":null}}\n", r.ID)
		case "time":
			fmt.Printf("{\"id\":%d,\"ms\":[%s1.5]}\n", r.ID, strings.Repeat("0.25,", r.N-1))
		default:
			fmt.Printf("{\"id\":%d}\n", r.ID)
		}
		if r.Op == "end" {
			return 0
		}
	}
	return 0
}

// command is a command line of a fake peer.
func command(t *testing.T, manner string) string {
	path, err := filepath.Abs(os.Args[0])
	require.NoError(t, err)
	return fmt.Sprintf("exec '%s' be-peer '%s'", path, manner)
}

func open(t *testing.T, ctx context.Context, manner string, o Options) (*Peer, error) {
	p, err := Open(ctx, command(t, manner), o)
	t.Cleanup(func() { _ = p.Close() })
	return p, err
}

// says waits until the last line that a peer wrote to standard error is this one.
func says(t *testing.T, child *process, line string) {
	t.Helper()
	require.Eventually(t, func() bool { return child.stderr.quote() == ": "+line }, patience, time.Millisecond)
}

func TestAPeerThatBehaves(t *testing.T) {
	ctx := context.Background()
	p, err := open(t, ctx, "good", Options{UUID: "00FFaa"})
	require.NoError(t, err)
	require.Equal(t, "fake", p.Info().Name)
	require.Equal(t, "a GPU", p.Info().Device)
	for range 3 {
		a, err := p.Problem(ctx, Problem{Call: fields.Call{B: 1}})
		require.NoError(t, err)
		require.EqualValues(t, 5, a.Memory)
		require.Equal(t, 2, a.Checked.Rows)
		require.InDelta(t, 0.5, *a.Checked.MaxError, 0)
		require.Nil(t, a.Checked.NMSE)
		for n := 1; n < 4; n++ {
			times, err := p.Time(ctx, n)
			require.NoError(t, err)
			require.Len(t, times, n)
			require.Equal(t, 1500*time.Microsecond, times[n-1])
		}
		require.NoError(t, p.Release(ctx))
	}
	child := p.process
	require.NoError(t, p.Close())
	<-child.exited
	require.NoError(t, child.state, "it ended by itself")
	require.NoError(t, p.Close())
}

func TestWhatAPeerRefuses(t *testing.T) {
	ctx := context.Background()
	for how, want := range map[string]error{
		`"status":"unsupported","reason":"no\nf32"`: ErrUnsupported,
		`"status":"wrong","reason":"no\nf32"`:       ErrWrong,
		`"status":"error","reason":"no\nf32"`:       errFailed,
	} {
		p, err := open(t, ctx, "problem:"+how, Options{})
		require.NoError(t, err)
		for range 4 {
			_, err = p.Problem(ctx, Problem{})
			require.ErrorIs(t, err, want)
			require.EqualError(t, err, "no f32")
		}
		require.Zero(t, p.failures, "a refusal is no failure")
	}
	p, err := open(t, ctx, `hello:"name":"torch","status":"unsupported","reason":"no torch here"`, Options{})
	require.ErrorIs(t, err, ErrUnsupported)
	require.Equal(t, "torch", p.Info().Name)
	_, err = p.Problem(ctx, Problem{})
	require.ErrorIs(t, err, ErrUnsupported)
	require.Nil(t, p.process, "there is nothing to wait for")
}

func TestAPeerThatMisbehavesIsStopped(t *testing.T) {
	ctx := context.Background()
	for manner, want := range map[string]string{
		"time:die":                          `ended at "time" (exit status 3): boom: 42`,
		"time:hang":                         `gave no answer to "time" within 1ms and was stopped: thinking`,
		"time:rubbish":                      `answered nonsense to "time": "UserWarning: \x1b[1mnice\x1b[0m day"`,
		"time:long":                         `answered nonsense to "time": a line of over 1048576 bytes`,
		"time:old":                          `answered nonsense to "time": "{\"id\":2}"`,
		"time:close":                        `closed its output at "time"`,
		`time:"ms":[1,2]`:                   `answered nonsense: 2 times for 1 runs`,
		`time:"ms":[-1]`:                    `answered nonsense: a run of -1 ms`,
		`time:"ms":[1e300]`:                 `answered nonsense: a run of 1e+300 ms`,
		`time:"ms":["1"]`:                   `answered nonsense to "time"`,
		`time:"ms":[1],"status":"fine"`:     `answered nonsense: status "fine"`,
		`time:"status":"error","reason":""`: `failed`,
	} {
		t.Run(manner, func(t *testing.T) {
			t.Parallel()
			p, err := open(t, ctx, manner, Options{Timeout: patience})
			require.NoError(t, err)
			_, err = p.Problem(ctx, Problem{})
			require.NoError(t, err)
			child := p.process
			measure := func() error {
				switch manner { // where something is waited for in vain, briefly
				case "time:hang":
					says(t, p.process, "thinking")
					p.options.Timeout = time.Millisecond
					defer func() { p.options.Timeout = patience }()
				case "time:close":
					p.process.lastWords = time.Millisecond
				}
				_, err := p.Time(ctx, 1)
				return err
			}
			err = measure()
			require.ErrorContains(t, err, want)
			require.NotContains(t, err.Error(), "\n")
			if manner == `time:"status":"error","reason":""` {
				require.NotNil(t, p.process)
				return
			}
			<-child.exited // or the test hangs
			require.NoError(t, p.Release(ctx))
			_, err = p.Problem(ctx, Problem{})
			require.NoError(t, err, "started anew, once")
			require.Error(t, measure())
			_, err = p.Problem(ctx, Problem{})
			require.ErrorContains(t, err, "given up: ")
			require.NoError(t, p.Close())
		})
	}
}

func TestAPeerThatNeverSaysItsName(t *testing.T) {
	ctx := context.Background()
	for manner, want := range map[string]string{
		"hello:die":                        "boom: 42",
		"hello:rubbish":                    "nonsense",
		`hello:"name":""`:                  `name ""`,
		`hello:"name":"a|b"`:               `name "a|b"`,
		`hello:"name":"x","uuid":"GPU-01"`: "not on the GPU under test",
	} {
		p, err := open(t, ctx, manner, Options{UUID: "00"})
		require.ErrorContains(t, err, want)
		require.Nil(t, p.process)
		require.Equal(t, p.info.Command, p.Info().Name)
		_, err = p.Problem(ctx, Problem{})
		require.ErrorContains(t, err, want)
	}
	p, err := Open(ctx, "no-such-command-at-all", Options{})
	require.ErrorContains(t, err, "not found")
	require.NoError(t, p.Close())
}

func TestTheLastAnswerOfAPeerCounts(t *testing.T) {
	ctx := context.Background()
	p, err := open(t, ctx, "time:last", Options{})
	require.NoError(t, err)
	_, err = p.Problem(ctx, Problem{})
	require.NoError(t, err)
	times, err := p.Time(ctx, 1)
	require.NoError(t, err)
	require.Len(t, times, 1)
	_, err = p.Time(ctx, 1)
	require.ErrorContains(t, err, "exit status 0")
}

func TestInterruptingKillsThePeer(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	p, err := open(t, ctx, "time:hang", Options{})
	require.NoError(t, err)
	_, err = p.Problem(ctx, Problem{})
	require.NoError(t, err)
	child := p.process
	go func() {
		says(t, child, "thinking hard")
		cancel()
	}()
	_, err = p.Time(ctx, 1)
	require.ErrorIs(t, err, context.Canceled)
	<-child.exited
	require.Zero(t, p.failures)

	// Between requests too.
	ctx, cancel = context.WithCancel(context.Background())
	p, err = open(t, ctx, "good", Options{})
	require.NoError(t, err)
	cancel()
	<-p.process.exited
	_, err = p.Time(ctx, 1)
	require.ErrorIs(t, err, context.Canceled)
}

func TestWhatAPeerStartedEndsWithIt(t *testing.T) {
	t.Parallel()
	mark := filepath.Join(t.TempDir(), "pid")
	ctx, cancel := context.WithCancel(context.Background())
	var pid string
	go func() {
		require.Eventually(t, func() bool {
			text, _ := os.ReadFile(mark)
			pid = strings.TrimSpace(string(text))
			return strings.HasSuffix(string(text), "\n")
		}, patience, time.Millisecond)
		cancel()
	}()
	p, err := Open(ctx, fmt.Sprintf("sleep 10000 & echo $! >'%s'; wait", mark), Options{Timeout: patience})
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, p.Close())
	require.Eventually(t, func() bool {
		state, err := os.ReadFile("/proc/" + pid + "/stat")
		return err != nil || strings.Contains(string(state), ") Z ")
	}, patience, time.Millisecond)
}

func TestOnlyTheEndOfStandardErrorIsKept(t *testing.T) {
	var tl tail
	for range 1000 {
		fmt.Fprintln(&tl, strings.Repeat("noise ", 10))
	}
	fmt.Fprint(&tl, "the\treason \n \n")
	require.Equal(t, ": the reason", tl.quote())
	require.LessOrEqual(t, len(tl.text), tailBytes)
}
