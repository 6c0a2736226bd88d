package sweep

import (
	"errors"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestInts(t *testing.T) {
	for list, want := range map[string][]int{
		"64":                {64},
		"64,128":            {64, 128},
		" 64 , 128 ":        {64, 128},
		"1024-16384*2":      {1024, 2048, 4096, 8192, 16384},
		"1000-5000*2":       {1000, 2000, 4000},
		"64-256+64":         {64, 128, 192, 256},
		"8-8+1":             {8},
		"1,2-8*2,6-10+2,1":  {1, 2, 4, 8, 6, 10},
		"2147483647":        {2147483647},
		"1-2147483647*1000": {1, 1000, 1000000, 1000000000},
	} {
		got, err := Ints(list)
		require.NoError(t, err, list)
		require.Equal(t, want, got, list)
	}
}

func TestIntsRefuses(t *testing.T) {
	for list, want := range map[string]string{
		"":                                   "not a positive number",
		"64,":                                "not a positive number",
		"0":                                  "not a positive number",
		"-4":                                 "not a positive number",
		"x":                                  "not a positive number",
		"1.5":                                "not a positive number",
		"64-128":                             "first-last*mult or first-last+step",
		"64-128*1":                           "at least 2",
		"64-128*0":                           "not a positive number",
		"64-128+0":                           "not a positive number",
		"64-128+":                            "not a positive number",
		"128-64+1":                           "ends before",
		"-64*2":                              "not a positive number",
		"1-9999999+1":                        "over 4096 values",
		"99999999999":                        "99999999999 is over 2147483647",
		"2147483648":                         "is over 2147483647",
		"1-1000000000000000000+1":            "1000000000000000000 is over 2147483647",
		"1-9223372036854775807*2":            "is over 2147483647",
		"1-100000000000000000000000000000+1": "is over 2147483647",
		"5-2147483647+99999999999":           "99999999999 is over 2147483647",
		"1-4096+1,1-9":                       "first-last*mult",
	} {
		_, err := Ints(list)
		require.ErrorContains(t, err, want, list)
	}
	_, err := Ints("1-4096+1,5000-6000+1")
	require.ErrorContains(t, err, "over 4096 values")
}

func TestWords(t *testing.T) {
	parse := func(s string) (string, error) {
		if s == "bad" {
			return "", errors.New("no such word")
		}
		return s, nil
	}
	got, err := Words("a, b,a", parse)
	require.NoError(t, err)
	require.Equal(t, []string{"a", "b"}, got)
	_, err = Words("a,bad", parse)
	require.EqualError(t, err, "no such word")
	var long []string
	for i := range limit + 1 {
		long = append(long, strconv.Itoa(i))
	}
	_, err = Words(strings.Join(long, ","), parse)
	require.EqualError(t, err, "the list has over 4096 values")
	got, err = Words(strings.Join(long[1:], ","), parse)
	require.NoError(t, err)
	require.Len(t, got, limit)
}
