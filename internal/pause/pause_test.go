package pause

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// TestLoop expects more polls than time.Sleep allows, and fewer than a loop without sleeps makes.
func TestLoop(t *testing.T) {
	const total = 50 * time.Millisecond
	best := 0 // a machine under load delays some loops
	for range 5 {
		var l Loop
		n, late := 0, 0
		for begin := time.Now(); time.Since(begin) < total; n++ {
			l.Wait()
			if time.Since(begin) > total/2 {
				late++
			}
		}
		assert.Less(t, late, int(total/2/(50*time.Microsecond)), "polls in the second half")
		best = max(best, late)
	}
	assert.Greater(t, best, int(total/2/(500*time.Microsecond)), "polls in the second half")
}
