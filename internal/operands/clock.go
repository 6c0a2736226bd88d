package operands

import (
	"context"
	"time"

	"vkattn/vk"
)

// InTurn calls functions until one fails.
func InTurn(steps ...func() error) error {
	for _, f := range steps {
		if err := f(); err != nil {
			return err
		}
	}
	return nil
}

// Timed records n runs on a stream, each behind a barrier and between two timestamps, and returns their times.
func Timed(ctx context.Context, s *vk.Stream, n int, run func() error) ([]time.Duration, error) {
	marks := make([][2]vk.Mark, n)
	stamp := func(m *vk.Mark) func() error {
		return func() (err error) {
			*m, err = s.Timestamp()
			return err
		}
	}
	for i := range marks {
		if err := InTurn(ctx.Err, s.Barrier, stamp(&marks[i][0]), run, stamp(&marks[i][1])); err != nil {
			return nil, err
		}
	}
	if err := s.Wait(ctx); err != nil {
		return nil, err
	}
	out := make([]time.Duration, n)
	for i, m := range marks {
		var err error
		if out[i], err = s.Elapsed(m[0], m[1]); err != nil {
			return nil, err
		}
	}
	return out, nil
}
