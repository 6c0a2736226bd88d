package cases

import (
	"reflect"

	"vkattn/internal/problem"
)

// noGradientOption are the fields of Config and Args that are no option of a call with
// gradients, and why. Every other field is one: a new field fails tests until tables of
// gradients have it, or it is here.
var noGradientOption = map[string]string{
	"DType": "a size", "HeadDim": "a size", "HeadDimV": "a size", "Shape": "a size",
	"Q": "a tensor", "K": "a tensor", "V": "a tensor", "O": "a tensor", "LSE": "a tensor",
	"Tier": "how, not what", "Access": "how, not what", "Tuning": "how, not what", "Check": "how, not what", "Kernel": "how, not what",
	"F32O": "a storage type", "F32Gradients": "a storage type",
	"FixedSplit":  "Forward alone splits keys",
	"DropoutSeed": "of Dropout", "DropoutOffset": "of Dropout", "DropoutState": "of Dropout", "ALiBiPerSequence": "of ALiBi", "MaxLogits": "an output of Forward",
	"KeyType": "has no gradients", "ValueType": "has no gradients", "KVBlock": "has no gradients", "KScale": "has no gradients", "VScale": "has no gradients", "Pages": "has no gradients",
	"ScoreMod": "tests/modifiers_backward_test.go has it", "MaskMod": "tests/modifiers_backward_test.go has it", "Tables": "tests/modifiers_backward_test.go has them",
	"BlockMap": "attention/backward_map_test.go has it",
}

// GradientOptions are the options that a call with gradients may have: names of fields of
// Config and Args. Each of them needs a row in every table of gradients.
func GradientOptions() (names []string) {
	for _, t := range []reflect.Type{reflect.TypeFor[problem.Config](), reflect.TypeFor[problem.Args]()} {
		for i := range t.NumField() {
			if name := t.Field(i).Name; noGradientOption[name] == "" {
				names = append(names, name)
			}
		}
	}
	return names
}

// GradientOptionsOf are the options that a call has.
func GradientOptionsOf(cfg problem.Config, a problem.Args) (names []string) {
	for _, v := range []reflect.Value{reflect.ValueOf(cfg), reflect.ValueOf(a)} {
		for i := range v.NumField() {
			if name := v.Type().Field(i).Name; noGradientOption[name] == "" && !v.Field(i).IsZero() {
				names = append(names, name)
			}
		}
	}
	return names
}
