package operands

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/internal/problem"
)

// full has every tensor and vector of a call, each in memory of its own.
func full(t *testing.T) (problem.Args, int) {
	var a problem.Args
	count := 0
	var fill func(v reflect.Value)
	fill = func(v reflect.Value) {
		switch v.Type() {
		case reflect.TypeFor[problem.Tensor](), reflect.TypeFor[problem.Vector]():
			v.FieldByName("Host").SetBytes(make([]byte, 64))
			count++
			return
		}
		for i := range v.NumField() {
			switch f := v.Field(i); {
			case f.Type() == reflect.TypeFor[*problem.BlockMap](): // of the library's own making
			case f.Kind() == reflect.Pointer && f.Type().Elem().Kind() == reflect.Struct:
				f.Set(reflect.New(f.Type().Elem()))
				fill(f.Elem())
			case f.Kind() == reflect.Struct:
				fill(f)
			}
		}
	}
	fill(reflect.ValueOf(&a).Elem())
	require.Greater(t, count, 15)
	return a, count
}

func TestEveryOperandIsListedOnce(t *testing.T) {
	a, count := full(t)
	list := List(problem.Config{HeadDim: 32}, &a)
	require.Len(t, list, count, "a field of Args that List does not know")
	seen := map[*byte]bool{}
	names := map[string]bool{}
	for i, o := range list {
		require.Equal(t, i, o.Of)
		seen[&o.Host()[0]] = true
		names[o.Name] = true
		require.Equal(t, o.Name == "O" || o.Name == "LSE" || o.Name == "MaxLogits", o.Output)
	}
	require.Len(t, seen, count)
	require.Len(t, names, count)
}

func TestACloneIsPlacedAlone(t *testing.T) {
	a, _ := full(t)
	b := Clone(a)
	for _, o := range List(problem.Config{HeadDim: 32}, &b) {
		o.OnHost(nil)
		o.Skip(8 * o.UnitBytes())
	}
	for _, o := range List(problem.Config{HeadDim: 32}, &a) {
		require.NotNil(t, o.Host(), o.Name)
	}
	require.Zero(t, a.Bias.Offset)
	require.EqualValues(t, 8, b.Bias.Offset)
}

func TestOffsetsCountElements(t *testing.T) {
	for kv, want := range map[problem.KVType]int64{problem.KVSame: 17, problem.KVInt8: 34, problem.KVQ8_0: 32, problem.KVQ4_0: 32} {
		a, _ := full(t)
		for _, o := range List(problem.Config{HeadDim: 32, KeyType: kv, ValueType: kv}, &a) {
			if o.Name == "K" {
				bytes := int64(34)
				if kv == problem.KVQ4_0 {
					bytes = 18
				}
				require.Zero(t, bytes%o.UnitBytes())
				o.Skip(bytes)
			}
		}
		require.Equal(t, want, a.K.Offset, "%v", kv)
	}
}

func TestAVWithinKIsInItsMemory(t *testing.T) {
	a, _ := full(t)
	a.V.Host = a.K.Host[:10]
	for i, o := range List(problem.Config{HeadDim: 32}, &a) {
		want := i
		if o.Name == "V" {
			want = i - 1
		}
		require.Equal(t, want, o.Of, o.Name)
	}
}

func TestEveryOperandOfABackwardCallIsListedOnce(t *testing.T) {
	args, count := full(t)
	a := problem.BackwardArgs{Args: args}
	for v, i := reflect.ValueOf(&a).Elem(), 0; i < v.NumField(); i++ {
		if f := v.Field(i).FieldByName; v.Field(i).Kind() == reflect.Struct && v.Type().Field(i).Name != "Args" {
			f("Host").SetBytes(make([]byte, 64))
			count++
		}
	}
	a.DTables = []problem.Table{{Name: "t", Vector: problem.Vector{Host: make([]byte, 64)}}}
	count++
	list := ListBackward(problem.Config{HeadDim: 32}, &a)
	require.Len(t, list, count, "a field of BackwardArgs that ListBackward does not know")
	names := map[string]bool{}
	for i, o := range list {
		require.Equal(t, i, o.Of)
		names[o.Name] = true
		if i >= len(list)-8 {
			require.Equal(t, o.Name != "DO" && o.Name != "DLSE", o.Output, o.Name)
		}
	}
	require.Len(t, names, count)
	b := CloneBackward(a)
	for _, o := range ListBackward(problem.Config{HeadDim: 32}, &b) {
		o.OnHost(nil)
	}
	require.NotNil(t, a.DSinks.Host)
	require.NotNil(t, a.DTables[0].Host)
	require.NotNil(t, a.Bias.Host)
}
