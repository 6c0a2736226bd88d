package attention_test

import (
	"encoding"
	"flag"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
)

type enum interface {
	flag.Value
	encoding.TextUnmarshaler
	encoding.TextMarshaler
}

func TestNamesRoundTripAndAreFlags(t *testing.T) {
	for name, e := range map[string]struct {
		fresh func() enum
		names []string
	}{
		"dtype":  {func() enum { return new(attention.DType) }, []string{"f16", "bf16", "f32"}},
		"causal": {func() enum { return new(attention.Causal) }, []string{"none", "top-left", "bottom-right"}},
		"tier":   {func() enum { return new(attention.Tier) }, []string{"auto", "cpu", "scalar", "coopmat", "coopmat2", "cubin", "cuda"}},
	} {
		for i, s := range e.names {
			v := e.fresh()
			fs := flag.NewFlagSet("", flag.ContinueOnError)
			fs.SetOutput(io.Discard)
			fs.Var(v, name, "")
			require.NoError(t, fs.Parse([]string{"-" + name, s}))
			require.Equal(t, s, v.String())
			if i == 0 {
				require.Equal(t, e.fresh(), v, "the first name is the zero value")
			}
			text, err := v.MarshalText()
			require.NoError(t, err)
			u := e.fresh()
			require.NoError(t, u.UnmarshalText(text))
			require.Equal(t, v, u)
		}
		v := e.fresh()
		require.NoError(t, v.Set(e.names[1]))
		require.ErrorContains(t, v.Set("fp7"), "want "+strings.Join(e.names, ", "), "the error lists what there is")
		require.True(t, strings.HasSuffix(v.Set("fp7").Error(), e.names[len(e.names)-1]), "e.names lists every value")
		require.Equal(t, e.names[1], v.String(), "a bad name changes nothing")
	}
}

func TestOtherSpellingsOfDTypes(t *testing.T) {
	for s, want := range map[string]attention.DType{
		"half": attention.F16, "FP16": attention.F16, "BFloat16": attention.BF16, "float32": attention.F32, "F32": attention.F32,
	} {
		got, err := attention.ParseDType(s)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	require.Equal(t, "2 2 4 0", fmt.Sprint(attention.F16.Size(), attention.BF16.Size(), attention.F32.Size(), attention.DType(9).Size()))
}

func TestScale(t *testing.T) {
	var s attention.Scale
	require.Equal(t, float32(0.125), s.Value(64))
	require.Equal(t, "default", s.String())
	require.Zero(t, attention.ScaleOf(0).Value(64), "0 is not the default")
	require.NotEqual(t, attention.Config{}, attention.Config{Scale: attention.ScaleOf(0)})
	require.Equal(t, "0.1", attention.ScaleOf(0.1).String())
}

func TestConfigIsAMapKey(t *testing.T) {
	m := map[attention.Config]int{{HeadDim: 64}: 1}
	require.Equal(t, 1, m[attention.Config{HeadDim: 64}])
	require.Equal(t, "bf16 d192/128 top-left scale 2 scalar", attention.Config{
		DType: attention.BF16, HeadDim: 192, HeadDimV: 128, Causal: attention.TopLeft,
		Scale: attention.ScaleOf(2), Tier: attention.TierScalar}.String())
	require.Equal(t, "B2 H8/2 S16x32", attention.Shape{B: 2, Hq: 8, Hkv: 2, Sq: 16, Sk: 32}.String())
}

// The messages of Validate list the values of an enumeration, as the errors of its parser do.
func TestValidateListsEveryTierAndKVType(t *testing.T) {
	_, tier := attention.ParseTier("none such")
	_, kv := attention.ParseKVType("none such")
	for _, c := range []struct {
		cfg    attention.Config
		parser error
	}{
		{attention.Config{HeadDim: 64, Tier: 200}, tier},
		{attention.Config{HeadDim: 64, KeyType: 200}, kv},
		{attention.Config{HeadDim: 64, ValueType: 200}, kv},
	} {
		_, names, found := strings.Cut(c.parser.Error(), "want ")
		require.True(t, found)
		for _, name := range strings.Split(names, ", ") {
			require.Regexp(t, `\b`+name+`\b`, c.cfg.Validate().Error())
		}
	}
}
