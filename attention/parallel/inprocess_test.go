package parallel

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"vkattn/internal/testlevel"
)

// Close ends the wait of its own rank, whether the others have come or not, and one that begins later. The
// clock is synctest's.
func TestCloseEndsTheOwnWait(t *testing.T) {
	testlevel.HostOnly(t)
	transfer := func(peer int) []Transfer { return []Transfer{{peer, Memory{Host: make([]byte, 4), Bytes: 4}}} }
	for name, wait := range map[string]func(x Transport, closed func()) error{
		"a gather": func(x Transport, closed func()) error {
			time.AfterFunc(1, closed) // when this rank waits
			_, err := x.Gather(context.Background(), nil)
			return err
		},
		"an exchange": func(x Transport, closed func()) error {
			time.AfterFunc(1, closed) // when this rank waits
			p, err := x.Exchange(nil, transfer(1))
			require.NoError(t, err)
			return p.Wait(context.Background())
		},
		"an exchange, before the wait": func(x Transport, closed func()) error {
			p, err := x.Exchange(nil, transfer(1))
			require.NoError(t, err)
			closed()
			return p.Wait(context.Background())
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				list, err := InProcess(3)
				require.NoError(t, err)
				require.Equal(t, &RankError{0, ErrLeft}, wait(list[0], func() { _ = list[0].Close() }))
				_, err = list[1].Gather(context.Background(), nil)
				require.Equal(t, &RankError{0, ErrLeft}, err)
			})
		})
	}
}

// An Exchange that fails at one of its messages leaves none of the others behind.
func TestExchangeThatFails(t *testing.T) {
	testlevel.HostOnly(t)
	list, err := InProcess(2)
	require.NoError(t, err)
	memory := func(n int64) Memory { return Memory{Host: make([]byte, n), Bytes: n} }
	first, err := list[0].Exchange([]Transfer{{1, memory(4)}, {1, memory(4)}}, []Transfer{{1, memory(4)}})
	require.NoError(t, err)
	_, err = list[1].Exchange([]Transfer{{0, memory(4)}}, []Transfer{{0, memory(4)}, {0, memory(5)}})
	require.ErrorIs(t, err, ErrMismatch)
	require.ErrorIs(t, first.Wait(context.Background()), ErrMismatch)
}
