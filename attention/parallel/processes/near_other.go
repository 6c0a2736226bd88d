//go:build !linux

package processes

import (
	"errors"
	"os"
)

// Ranks share no memory here: newShared returns an error, and every gather is one of messages.

func newShared() (*os.File, error) { return nil, errors.ErrUnsupported }

func mapShared(*os.File, bool) ([]byte, error) { return nil, errors.ErrUnsupported }

func unmapShared([]byte) {}
