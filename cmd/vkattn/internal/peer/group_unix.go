//go:build unix

package peer

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
)

var shell = [2]string{"/bin/sh", "-c"}

// group gives a command a process group of its own, which the end of its context kills.
func group(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error {
		err := syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		if errors.Is(err, syscall.ESRCH) {
			return os.ErrProcessDone
		}
		return err
	}
}
