package vk

import (
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// featureNames are the names of the features by their bits, in lower case.
func featureNames() (names []string) {
	for bit := range featureCount {
		var c Caps
		*c.feature(bit) = true
		names = append(names, setField(reflect.ValueOf(c), ""))
	}
	return names
}

// The booleans of Caps are those of feature_table.go, except for a property and what the instance has.
func TestFeatureBitsAreThoseOfTheTable(t *testing.T) {
	var missing []string
	for bit, name := range featureNames() {
		if hostFeature(bit) == (Feature{}) {
			missing = append(missing, name)
		}
	}
	require.Equal(t, []string{"externalmemorydedicated", "debugutils"}, missing)
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
