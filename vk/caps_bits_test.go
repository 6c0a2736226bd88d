package vk

import (
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The fields of featureBits are those of feature_bits.h, by name and in its order.
func TestFeatureBitsAreThoseOfC(t *testing.T) {
	header := readFile(t, "feature_bits.h")
	names := regexp.MustCompile(`(?m)^\tVKA_(\w+),`).FindAllStringSubmatch(string(header), -1)
	require.Len(t, names, featureCount)
	for bit, field := range featureBits {
		var c Caps
		*field(&c) = true
		require.Equal(t, strings.ToLower(strings.ReplaceAll(names[bit][1], "_", "")), setField(reflect.ValueOf(c), ""), "bit %d", bit)
	}
	require.Equal(t, "SUBGROUP_SIZE_CONTROL", names[featureSubgroupSizeControl][1])
}

// setField is the name of the boolean that is true, in lower case and with that of the struct around it.
func setField(v reflect.Value, prefix string) string {
	for i := range v.NumField() {
		name := strings.ToLower(v.Type().Field(i).Name)
		switch f := v.Field(i); f.Kind() {
		case reflect.Bool:
			if f.Bool() {
				return prefix + name
			}
		case reflect.Struct:
			if found := setField(f, strings.Replace(name, "coopmat2", "cm2", 1)); found != "" {
				return found
			}
		}
	}
	return ""
}
