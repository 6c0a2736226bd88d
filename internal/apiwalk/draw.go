package apiwalk

import (
	"context"
	"go/ast"
	"math"
	"math/rand/v2"
	"reflect"
	"time"
)

// Drawing arguments: zero values, senseless values and live objects.

var (
	contextType = reflect.TypeFor[context.Context]()
	errorType   = reflect.TypeFor[error]()
)

// drawer makes argument values: zero values, senseless values, and objects of its pool.
// Sizes stay small, so that nothing takes much memory.
type drawer struct {
	*rand.Rand
	pool map[reflect.Type][]reflect.Value
	zero bool // only zero values
}

// patience is the timeout of drawn contexts, so that calls that wait end.
const patience = 20 * time.Millisecond

func (d *drawer) value(t reflect.Type, depth int) reflect.Value {
	v := reflect.New(t).Elem()
	if d.zero || depth > 4 {
		return v
	}
	if list := d.pool[t]; len(list) > 0 && d.IntN(2) == 0 {
		return list[d.IntN(len(list))]
	}
	if t == contextType {
		if d.IntN(2) == 0 {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			time.AfterFunc(2*patience, cancel)
			v.Set(reflect.ValueOf(ctx))
		}
		return v
	}
	switch t.Kind() {
	case reflect.Bool:
		v.SetBool(d.IntN(2) == 0)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt([]int64{-1, 0, 1, 3}[d.IntN(4)])
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint([]uint64{0, 1, 3, 200}[d.IntN(4)])
	case reflect.Float32, reflect.Float64:
		v.SetFloat([]float64{0, -1, 2.5, math.NaN(), math.Inf(1)}[d.IntN(5)])
	case reflect.String:
		v.SetString([]string{"", "x", "\x00"}[d.IntN(3)])
	case reflect.Struct:
		for i := range t.NumField() {
			if t.Field(i).IsExported() {
				v.Field(i).Set(d.value(t.Field(i).Type, depth+1))
			}
		}
	case reflect.Array:
		for i := range t.Len() {
			v.Index(i).Set(d.value(t.Elem(), depth+1))
		}
	case reflect.Slice:
		if n := d.IntN(3); n > 0 {
			v.Set(reflect.MakeSlice(t, n, n))
			for i := range n {
				v.Index(i).Set(d.value(t.Elem(), depth+1))
			}
		}
	case reflect.Pointer:
		// A pointer to a struct of C is a handle. A call with a made-up handle would crash.
		e := t.Elem()
		drawn := e.PkgPath() != "" && ast.IsExported(e.Name()) || e.Name() == "" && e.Kind() == reflect.Struct
		if drawn && d.IntN(2) == 0 {
			v.Set(reflect.New(t.Elem()))
			if t.Elem().Kind() == reflect.Struct && !locked(t.Elem()) {
				v.Elem().Set(d.value(t.Elem(), depth+1))
			}
		}
	case reflect.Func:
		if d.IntN(2) == 0 {
			v.Set(reflect.MakeFunc(t, func([]reflect.Value) []reflect.Value {
				out := make([]reflect.Value, t.NumOut())
				for i := range out {
					out[i] = reflect.New(t.Out(i)).Elem()
				}
				return out
			}))
		}
	case reflect.Interface:
		var fit []reflect.Value
		for _, list := range d.pool {
			for _, x := range list {
				if x.Type().Implements(t) && t.NumMethod() > 0 {
					fit = append(fit, x)
				}
			}
		}
		if len(fit) > 0 && d.IntN(4) > 0 {
			v.Set(fit[d.IntN(len(fit))])
		}
		if t.NumMethod() == 0 && d.IntN(2) == 0 {
			v.Set(reflect.ValueOf([]any{1, "key", []int{1}}[d.IntN(3)]))
		}
	}
	return v
}

// locked reports whether a struct has internal state. Such a struct is drawn as its zero
// value.
func locked(t reflect.Type) bool {
	for i := range t.NumField() {
		if !t.Field(i).IsExported() {
			return true
		}
	}
	return false
}
