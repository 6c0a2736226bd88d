package pause

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// A loop polls without sleeping at first, then sleeps longer and longer, and never for as long as time.Sleep
// does.
func TestLoop(t *testing.T) {
	var l Loop
	begin := time.Now()
	var before time.Duration
	for waited := time.Duration(0); waited < 50*time.Millisecond; waited += 10 * time.Microsecond {
		d := l.sleep(begin.Add(waited))
		assert.Equal(t, waited < spin, d == 0, "after %v", waited)
		assert.GreaterOrEqual(t, d, before, "after %v", waited)
		before = d
	}
	assert.Equal(t, longest, before)
	l.Wait()
	assert.Equal(t, begin, l.begin)
}
