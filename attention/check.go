package attention

import (
	"fmt"
	"os"

	"vkattn/internal/backend"
	"vkattn/internal/tensors"
)

// CheckEnv is the name of an environment variable. Where it is 1, every operation made after that checks numbers in
// device memory, as [Config].Check asks for.
const CheckEnv = "VKATTN_CHECK"

// checkNumbers checks the lengths, pages and offsets of a call whose arguments are checked, if the operation does that. It
// waits for what the stream has recorded. s is nil for a caller's command buffer.
func (op *Op) checkNumbers(s backend.Stream, a *Args) error {
	if !op.cfg.Check && !op.checks || a.Varlen == nil && a.Pages == nil && a.SparseTokens == nil {
		return nil
	}
	if s == nil {
		if op.cfg.Check {
			return fmt.Errorf("%w: Config.Check reads numbers before the call, which a command buffer does not run yet", ErrUnsupported)
		}
		return nil
	}
	return tensors.CheckDeviceNumbers(*a, func(v Vector, n int) ([]byte, error) { return backend.ReadNumbers(s, v, n) })
}

func checksByEnv() bool { return os.Getenv(CheckEnv) == "1" }
