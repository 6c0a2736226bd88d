package markdown

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWordsAreToTheLeftAndNumbersToTheRight(t *testing.T) {
	m := New("name<", "ms")
	m.Column("note<")
	m.Row("a", 1.5, "why")
	m.Row("longer", 10, "")
	require.Equal(t, "| name   |  ms | note |\n"+
		"|:------ | ---:|:---- |\n"+
		"| a      | 1.5 | why  |\n"+
		"| longer |  10 |      |", m.String())
}
