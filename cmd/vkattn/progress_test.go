//go:build linux

package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// screen is what a terminal shows of a text: its lines without those at the end that are empty.
func screen(text string) []string {
	lines, column := []string{""}, 0
	for len(text) > 0 {
		last := &lines[len(lines)-1]
		switch rest, erased := strings.CutPrefix(text, "\x1b[K"); {
		case erased:
			*last, text = (*last)[:column], rest
			continue
		case text[0] == '\r':
			column = 0
		case text[0] == '\n':
			lines, column = append(lines, ""), 0
		default:
			*last = (*last)[:column] + text[:1] + (*last)[min(len(*last), column+1):]
			column++
		}
		text = text[1:]
	}
	for len(lines) > 0 && strings.TrimSpace(lines[len(lines)-1]) == "" {
		lines = lines[:len(lines)-1]
	}
	return lines
}

// shown is what the terminal of a line shows, which is a buffer.
func shown(p *progress) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(screen(p.w.(*bytes.Buffer).String()), "\n")
}

// later passes time in a bubble, with the timers that end in it.
func later(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func TestTheProgressLineFitsTheTerminal(t *testing.T) {
	for _, width := range []int{5, 20, 40, 60, 80, 200} {
		synctest.Test(t, func(t *testing.T) {
			var out bytes.Buffer
			p := &progress{w: &out, width: func() int { return width }}
			p.start("row", 5)
			for range 3 {
				later(2 * time.Second)
				p.step()
				p.say("f16 d128 B16 H8 S16384: coopmat2 warming up " + strings.Repeat("x", width/4))
				later(time.Second)
				require.Less(t, len(shown(p)), width)
				require.LessOrEqual(t, len(shown(p)), 60)
			}
			require.NotContains(t, out.String(), "\x1b[3", "no colors")
			require.Regexp(t, `^[[:ascii:]]*$`, out.String(), "a terminal of the locale C has no other letters")
			p.end()
			require.Empty(t, shown(p))
			p.say("a goroutine that cannot be stopped")
			p.step()
			later(time.Hour)
			require.Empty(t, shown(p))
		})
	}
}

func TestTheProgressLineTellsRowTimeAndProblem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		p := &progress{w: &out, width: func() int { return 60 }}
		p.start("row", 12)
		p.say("bf16 d128 top-left B16 H8 S16384: coopmat2 checking")
		require.Equal(t, "row 1 of 12: bf16 d128 top-left B16 H8 S16384: coopmat2 ...", shown(p))
		later(10 * time.Second)
		p.step()
		p.say("bf16 d128 top-left B16 H8 S16384: coopmat2 run 3")
		p.say("f32 d64 B16 H8 S16384: coopmat2 run 4") // at the same moment
		later(2 * time.Second)
		require.Equal(t, "row 2 of 12, 1m49s left: f32 d64 B16 H8 S16384: coopmat2...", shown(p), "no text is lost, and the time goes on")
		p.end()
	})
}

// What is printed on the terminal stands above the line.
func TestOutputStandsAboveTheProgressLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		p := &progress{w: &out, width: func() int { return 60 }}
		stdout := &above{p, &out}
		p.start("row", 2)
		p.say("f16")
		fmt.Fprintln(stdout, `{"row": 1}`)
		require.Equal(t, `{"row": 1}`, shown(p))
		p.step()
		require.Equal(t, `{"row": 1}`+"\nrow 2 of 2, 0s left: f16", shown(p))
		fmt.Fprint(stdout, `{"row":`)
		p.say("f32")
		later(time.Hour)
		fmt.Fprintln(stdout, ` 2}`)
		p.say("f32")
		require.Equal(t, `{"row": 1}`+"\n"+`{"row": 2}`+"\nrow 2 of 2, 0s left: f32", shown(p))
		p.end()
		require.Equal(t, `{"row": 1}`+"\n"+`{"row": 2}`, shown(p))
	})
}

func TestThereIsNoProgressOnTerminalsThatOnlyPrint(t *testing.T) {
	require.True(t, moves("xterm-256color"))
	require.False(t, moves("dumb"))
	require.False(t, moves(""))
}

func TestThereIsNoProgressOnPipes(t *testing.T) {
	var out bytes.Buffer
	var p progress
	p.open(&out)
	require.Equal(t, &out, p.above(&out))
	p.start("row", 3)
	p.say("x")
	p.step()
	p.end()
	require.Empty(t, out.String())
}

// terminal opens a terminal of so many columns: its program's side and its user's.
func terminal(t *testing.T, columns uint16) (program, user *os.File) {
	t.Helper()
	user, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { _ = user.Close() })
	require.NoError(t, unix.IoctlSetPointerInt(int(user.Fd()), unix.TIOCSPTLCK, 0))
	number, err := unix.IoctlGetInt(int(user.Fd()), unix.TIOCGPTN)
	require.NoError(t, err)
	program, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	require.NoError(t, err)
	require.NoError(t, unix.IoctlSetWinsize(int(program.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: columns}))
	return program, user
}

// The row takes minutes. Its interrupt comes from the keyboard, which the terminal echoes.
func TestCtrlCLeavesAWholeTable(t *testing.T) {
	onceOnly(t)
	cmd := command(t, "bench", "--device", "cpu", "--batch-size", "1", "--nheads", "8", "--seqlen", "150000", "--headdim", "64", "--causal", "none", "--dtype", "f16", "--seed", "3")
	program, user := terminal(t, 60)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = program, program, program
	cmd.Env = append(cmd.Env, "TERM=xterm")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	require.NoError(t, cmd.Start())
	require.NoError(t, program.Close())
	watchdog := time.AfterFunc(2*time.Minute, func() { _ = cmd.Process.Kill() })
	defer watchdog.Stop()
	var text strings.Builder
	part := make([]byte, 4096)
	for asked := false; ; {
		n, err := user.Read(part)
		text.Write(part[:n])
		if err != nil { // EIO: the program has ended
			require.ErrorIs(t, err, syscall.EIO)
			break
		}
		if !asked && strings.Contains(text.String(), "f16 d6") {
			_, err := io.WriteString(user, "\x03")
			require.NoError(t, err)
			asked = true
		}
	}
	var exit *exec.ExitError
	require.ErrorAs(t, cmd.Wait(), &exit)
	require.Equal(t, exitSignal+int(syscall.SIGINT), exit.ExitCode())
	require.Contains(t, text.String(), "^C")
	lines := screen(text.String())
	require.Len(t, lines, 7, "%q", lines)
	for i, begin := range []string{"device cpu, B 1,", "", "| tier ", "|:------", "| auto ", "0 of 1 rows, seed 3", "vkattn: interrupted"} {
		require.True(t, strings.HasPrefix(lines[i], begin), "%q", lines)
	}
}
