package bench

import (
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
)

func TestLengths(t *testing.T) {
	for _, c := range []struct {
		in   string
		rows int
		want Lengths
	}{
		{"5,7", 0, "5/5,7/7"},
		{"5, 0", 1, "1/5,1/0"},
		{"2/9,3*1/4", 1, "2/9,3*1/4"},
		{"2*6", 0, "2*6/6"},
		{"0/4,1/1", 0, "0/4,1/1"},
	} {
		got, err := ParseLengths(c.in, c.rows)
		require.NoError(t, err, c.in)
		require.Equal(t, c.want, got)
		again, err := ParseLengths(string(got), 3)
		require.NoError(t, err)
		require.Equal(t, got, again, "what is written reads as itself")
	}
	for in, want := range map[string]string{"": "want KEYS", "x": "want KEYS", "1/2/3": "want KEYS", "-4": "want KEYS", "0": "no sequence has",
		"0*5": "sequences", "99999*1": "sequences", "4/0": "no sequence has", "5,": "want KEYS", "99999999999": "99999999999 is over 2147483647",
		"1*2147483648/1": "2147483648 is over", "9223372036854775808*1/1": "9223372036854775808 is over", "2147483647*1/1": "sequences",
		"65536*1/1,65536*1/1": "sequences"} {
		_, err := ParseLengths(in, 1)
		require.ErrorContains(t, err, want, in)
	}
	rows, keys := Lengths("2*1/8,3/5").lists()
	require.Equal(t, [][]int{{1, 1, 3}, {8, 8, 5}}, [][]int{rows, keys})
	s := attention.Shape{B: 9, Hq: 2, Hkv: 1, Sq: 9, Sk: 9}
	Lengths("2*1/8,3/5").bound(&s)
	require.Equal(t, attention.Shape{B: 3, Hq: 2, Hkv: 1, Sq: 3, Sk: 8}, s)
}
