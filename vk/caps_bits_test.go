package vk

import (
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// featureNames are the names of the features of feature_table.go by their bits, in lower case.
func featureNames(t *testing.T) (names []string) {
	t.Helper()
	list, _, _ := strings.Cut(string(readFile(t, "feature_table.go")), "featureCount")
	for _, m := range regexp.MustCompile(`(?m)^\tfeature([A-Z]\w*)(?: = iota)?(?: //.*)?$`).FindAllStringSubmatch(list, -1) {
		names = append(names, strings.ToLower(m[1]))
	}
	require.Len(t, names, featureCount)
	return names
}

// The booleans of Caps are those of feature_table.go, by name and in its order.
func TestFeatureBitsAreThoseOfTheTable(t *testing.T) {
	names := featureNames(t)
	require.Len(t, featureFields, featureCount)
	for bit := range featureCount {
		var c Caps
		*c.feature(bit) = true
		require.Equal(t, names[bit], setField(reflect.ValueOf(c), ""), "bit %d", bit)
	}
	require.Equal(t, "subgroupsizecontrol", names[featureSubgroupSizeControl])
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
