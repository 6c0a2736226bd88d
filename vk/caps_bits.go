package vk

import (
	"reflect"
	"slices"
)

// featureFields are the paths to the booleans of Caps. Their indices are the feature bits of feature_table.go.
var featureFields = booleans(reflect.TypeFor[Caps](), nil)

func booleans(t reflect.Type, path []int) (list [][]int) {
	for i := range t.NumField() {
		at := append(path[:len(path):len(path)], i)
		switch f := t.Field(i).Type; f.Kind() {
		case reflect.Bool:
			list = append(list, at)
		case reflect.Struct:
			list = append(list, booleans(f, at)...)
		}
	}
	return list
}

var featureCount = len(featureFields)

// featureOf is the bit of the boolean of a name.
func featureOf(name string) int {
	return slices.IndexFunc(featureFields, func(path []int) bool { return reflect.TypeFor[Caps]().FieldByIndex(path).Name == name })
}

// feature is the boolean of a feature bit, for probing, enabling and the caller's claims in Wrap.
func (c *Caps) feature(bit int) *bool {
	return reflect.ValueOf(c).Elem().FieldByIndex(featureFields[bit]).Addr().Interface().(*bool)
}

func (c *Caps) bits() (b uint64) {
	for bit := range featureCount {
		if *c.feature(bit) {
			b |= 1 << bit
		}
	}
	return b
}

// setBits sets the booleans from the bits of b and clears what depends on a false one.
func (c *Caps) setBits(b uint64) {
	for bit := range featureCount {
		*c.feature(bit) = b>>bit&1 != 0
	}
	if !c.CoopMat {
		c.CoopMatShapes = nil
	}
	if !c.CoopMat2.FlexibleDimensions {
		c.CoopMat2.Flexible = nil
	}
	if !c.SubgroupSizeControl {
		c.MinSubgroupSize, c.MaxSubgroupSize = c.SubgroupSize, c.SubgroupSize
	}
}
