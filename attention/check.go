package attention

import (
	"context"
	"fmt"
	"os"

	"vkattn/internal/tensors"
	"vkattn/vk"
)

// CheckEnv is the name of an environment variable. Where it is 1, every operation made after that checks numbers in
// device memory, as [Config].Check asks for.
const CheckEnv = "VKATTN_CHECK"

// readNumbers returns the first n elements of an int32 vector on a device, behind the work that the stream has recorded.
func readNumbers(s *vk.Stream, v Vector, n int) ([]byte, error) {
	b := make([]byte, 4*n)
	if n == 0 {
		return b, nil
	}
	return b, s.Download(context.Background(), b, v.Buffer, uint64(4*v.Offset))
}

// checkNumbers checks the lengths, pages and offsets of a call whose arguments are checked, if the operation does that. It
// waits for what the stream has recorded. s is nil for a caller's command buffer.
func (op *Op) checkNumbers(s *vk.Stream, a *Args) error {
	if !op.cfg.Check && !op.checks || a.Varlen == nil && a.Pages == nil && a.SparseTokens == nil {
		return nil
	}
	if s == nil {
		if op.cfg.Check {
			return fmt.Errorf("%w: Config.Check reads numbers before the call, which a command buffer does not run yet", ErrUnsupported)
		}
		return nil
	}
	return tensors.CheckDeviceNumbers(*a, func(v Vector, n int) ([]byte, error) { return readNumbers(s, v, n) })
}

func checksByEnv() bool { return os.Getenv(CheckEnv) == "1" }
